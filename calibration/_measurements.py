"""Measured points as rows of the linear model ``time = alpha_count alpha + beta_factor bytes beta``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from autosbp.calibration._regression import LineFit, relative_least_squares
from autosbp.costmodel.calibration import BETA_FLOOR_S_PER_BYTE, Point
from autosbp.costmodel.network import alpha_count, beta_factor

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """One row per point, of one or several collectives.

    Columns: message size in bytes, time in seconds, ``alpha_count`` (latencies) and ``beta_factor`` (bytes sent per
    message byte).
    """

    sizes: _Array
    times: _Array
    latencies: _Array
    parts: _Array

    @staticmethod
    def of(kind: str, group_shape: tuple[int, ...], points: Sequence[Point]) -> Rows:
        ranks = prod(group_shape)
        sizes = np.array([point.num_bytes for point in points], dtype=np.float64)
        times = np.array([point.median_s for point in points], dtype=np.float64)
        latencies, parts = (np.full_like(sizes, each(kind, ranks)) for each in (alpha_count, beta_factor))
        return Rows(sizes, times, latencies, parts)

    @staticmethod
    def joined(rows: Sequence[Rows]) -> Rows:
        """Concatenate rows."""
        names = ("sizes", "times", "latencies", "parts")
        return Rows(*(np.concatenate([getattr(each, name) for each in rows]) for name in names))

    def columns(self, knots: Sequence[int]) -> _Array:
        """Design matrix: the latency column, then for each piece between knots its bytes times ``beta_factor``."""
        edges = [0.0, *map(float, knots), math.inf]
        pieces = [np.clip(self.sizes, low, high) - low for low, high in zip(edges, edges[1:], strict=False)]
        return np.stack([self.latencies, *(self.parts * piece for piece in pieces)], axis=1)

    def fit(self, knots: Sequence[int]) -> LineFit:
        """Robust relative fit, piecewise linear between knots, with alpha >= 0 and beta > 0."""
        columns = self.columns(knots)
        floor = np.array([0.0, *[BETA_FLOOR_S_PER_BYTE] * (columns.shape[1] - 1)])
        return relative_least_squares(columns, self.times, floor)
