"""alpha and beta of one collective from its measured points.

The model is linear in both (``autosbp.costmodel.network``): ``time = alpha_count alpha + beta_factor bytes beta``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from autosbp.costmodel.calibration import CollectiveFit, Point
from autosbp.costmodel.network import alpha_count, beta_factor
from autosbp.errors import CalibrationError, InputError

METHODS = ("relative", "ols")
MIN_POINTS = 3
BETA_FLOOR_S_PER_BYTE = 1e-15  # 1 PB/s: times that do not grow with size say only that beta is too small to see
_HUBER_STEPS = 10
_HUBER_K = 1.345  # 95 % efficiency at normal residuals
_SCALE_FLOOR = 0.01  # relative residuals below 1 % are not outliers
_Array = NDArray[np.float64]


def fit_collective(
    kind: str, group_shape: tuple[int, ...], points: Sequence[Point], method: str = "relative"
) -> CollectiveFit:
    """Fit ``points`` of one kind and group shape.

    ``relative`` minimises relative residuals (weights 1/time) under ``alpha >= 0`` and ``beta > 0``, with Huber weights
    against outliers. ``ols`` is AutoDDL's plain least squares (section 3.2): large messages decide it, and its alpha
    may be negative. Raises ``CalibrationError`` that names the measurement for fewer than three points or two sizes,
    and for times that are not positive finite numbers.
    """
    if method not in METHODS:
        raise InputError("method", method, f"one of {', '.join(METHODS)} is expected")
    name = f"{kind} over {'x'.join(map(str, group_shape))}"
    _check(name, points)
    num_ranks = prod(group_shape)
    sizes = np.array([point.num_bytes for point in points], dtype=np.float64)
    times = np.array([point.median_s for point in points], dtype=np.float64)
    columns = np.stack(
        [np.full_like(sizes, alpha_count(kind, num_ranks)), beta_factor(kind, num_ranks) * sizes], axis=1
    )
    alpha, beta = _plain(columns, times) if method == "ols" else _relative(columns, times)
    residuals = columns @ np.array([alpha, beta]) - times
    relative = np.abs(residuals / times)
    spread = float(np.sum((times - times.mean()) ** 2))
    unexplained = float(np.sum(residuals**2))
    r2 = 1.0 - unexplained / spread if spread > 0 else float(unexplained == 0)
    return CollectiveFit(
        kind, group_shape, alpha, beta, r2, float(np.median(relative)), float(relative.max()), tuple(points)
    )


def _check(name: str, points: Sequence[Point]) -> None:
    if len(points) < MIN_POINTS or len({point.num_bytes for point in points}) < 2:
        raise CalibrationError(
            f"{name}: {len(points)} points are too few to fit; at least {MIN_POINTS} of two sizes are needed"
        )
    for point in points:
        if not (math.isfinite(point.median_s) and point.median_s > 0 and point.num_bytes > 0):
            raise CalibrationError(
                f"{name}, {point.num_bytes} bytes: a time of {point.median_s} s was measured; "
                "it must be positive and finite"
            )


def _plain(columns: _Array, times: _Array) -> tuple[float, float]:
    scale = columns.max(axis=0)
    alpha, beta = np.linalg.lstsq(columns / scale, times, rcond=None)[0] / scale
    return float(alpha), float(beta)


def _relative(columns: _Array, times: _Array) -> tuple[float, float]:
    rows = columns / times[:, None]
    scale = rows.max(axis=0)
    low = np.array([0.0, BETA_FLOOR_S_PER_BYTE]) * scale
    weights = np.ones_like(times)
    solution = low
    for _ in range(_HUBER_STEPS):
        root = np.sqrt(weights)
        solution = lsq_linear(rows / scale * root[:, None], root, bounds=(low, np.inf), method="bvls").x
        residuals = np.abs(rows / scale @ solution - 1.0)
        limit = _HUBER_K * max(1.4826 * float(np.median(residuals)), _SCALE_FLOOR)
        weights = np.minimum(1.0, limit / np.maximum(residuals, limit))
    alpha, beta = np.maximum(solution, low) / scale
    return float(alpha), max(float(beta), BETA_FLOOR_S_PER_BYTE)
