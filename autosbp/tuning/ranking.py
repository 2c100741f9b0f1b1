"""Ranking accuracy of scores: the share of pairs of strategies in the right order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MIN_RATIO = 1.02
"""Ratio of two measured times up to which their order counts as noise."""


def ordered_pairs(seconds: Sequence[float]) -> NDArray[np.int64]:
    """Indices (faster, slower) of all pairs that differ by more than noise; shape (n, 2)."""
    times = np.asarray(seconds, dtype=np.float64)
    faster, slower = np.nonzero(times[:, None] * MIN_RATIO < times[None, :])
    return np.stack([faster, slower], axis=1)


def ranking_accuracy(scores: Sequence[float], seconds: Sequence[float]) -> float | None:
    """Share of correctly ranked pairs, of all pairs whose times differ; None if there is no such pair.

    Args:
        scores: scores of the strategies, higher is faster.
        seconds: measured step times; infinite for failed trials.
    """
    pairs = ordered_pairs(seconds)
    if not len(pairs):
        return None
    values = np.asarray(scores)
    return float(np.mean(values[pairs[:, 0]] > values[pairs[:, 1]]))
