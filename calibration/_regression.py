"""Linear regression of times: ordinary least squares, and robust relative least squares with bounds and intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear
from scipy.stats import t as t_distribution

HUBER_K = 1.345  # 95 % efficiency for normal residuals
HUBER_STEPS = 10
SCALE_FLOOR = 0.01  # relative residuals below 1 % are not outliers
OUTLIER_WEIGHT = 0.3
CONFIDENCE = 0.95
_Array = NDArray[np.float64]


@dataclass(frozen=True)
class LineFit:
    """Result of a regression.

    Attributes:
        values: coefficient of each column.
        predicted: predicted times.
        weights: weight of each point.
        errors: standard error of each coefficient; 0 at a bound.
        loss: minimized weighted sum of squared residuals.
        degrees: degrees of freedom of ``errors``.
    """

    values: _Array
    predicted: _Array
    weights: _Array
    errors: _Array
    loss: float
    degrees: int

    @property
    def rms_error(self) -> float:
        return float(np.sqrt(self.loss / max(self.weights.sum(), 1e-12)))

    def interval(self, at: int) -> tuple[float, float]:
        """Confidence interval of a coefficient, from Student's t; only the value itself if too few points remain."""
        value = float(self.values[at])
        if self.degrees < 1:
            return value, value
        half = float(t_distribution.ppf(0.5 + CONFIDENCE / 2, self.degrees) * self.errors[at])
        return value - half, value + half


def ordinary_least_squares(columns: _Array, times: _Array) -> LineFit:
    """Ordinary least squares in seconds (AutoDDL section 3.2)."""
    scale = columns.max(axis=0)
    values = np.linalg.lstsq(columns / scale, times, rcond=None)[0] / scale
    return _line(columns, times, values, np.ones_like(times), np.ones(len(values), dtype=bool))


def relative_least_squares(columns: _Array, times: _Array, floor: _Array) -> LineFit:
    """Least squares of relative residuals with Huber weights, each coefficient at least its ``floor``."""
    rows = columns / times[:, None]
    scale = np.maximum(rows.max(axis=0), 1e-300)
    low = floor * scale
    weights = np.ones_like(times)
    solution = low
    for _ in range(HUBER_STEPS):
        root = np.sqrt(weights)
        solution = lsq_linear(rows / scale * root[:, None], root, bounds=(low, np.inf), method="bvls").x
        residuals = np.abs(rows / scale @ solution - 1.0)
        limit = HUBER_K * max(1.4826 * float(np.median(residuals)), SCALE_FLOOR)
        weights = np.minimum(1.0, limit / np.maximum(residuals, limit))
    values = np.maximum(np.maximum(solution, low) / scale, floor)
    free = solution > low * (1 + 1e-9)
    return _line(rows, np.ones_like(times), values, weights, free, times)


def _line(
    rows: _Array, target: _Array, values: _Array, weights: _Array, free: NDArray[np.bool_], unit: _Array | None = None
) -> LineFit:
    predicted = rows @ values
    loss = float(np.sum(weights * (predicted - target) ** 2))
    degrees = len(target) - int(free.sum())
    errors = np.zeros(len(values))
    if degrees > 0 and free.any():
        scale = np.maximum(np.abs(rows[:, free]).max(axis=0), 1e-300)
        scaled = rows[:, free] / scale
        variance = _variance(weights, predicted - target, int(free.sum()))
        covariance = np.linalg.pinv(scaled.T @ scaled) * variance
        errors[free] = np.sqrt(np.maximum(np.diag(covariance), 0.0)) / scale
    kept = int(np.sum(weights >= 1.0)) - int(free.sum())  # down-weighted points say little about the scatter
    return LineFit(
        values, predicted * (1.0 if unit is None else unit), weights, errors, loss, max(kept, min(degrees, 1))
    )


def _variance(weights: _Array, residuals: _Array, num_free: int) -> float:
    """Variance of one point for the covariance of robust estimates: Huber, Robust Statistics (1981), section 7.6, (6.5).

    The weighted squares alone underestimate it, since down-weighted points still influence the line.
    """
    kept = np.mean(weights >= 1.0)
    if kept == 0:
        return float(np.sum(residuals**2) / (len(residuals) - num_free))
    correction = 1.0 + num_free / len(residuals) * (1.0 - kept) / kept
    return float((correction / kept) ** 2 * np.sum((weights * residuals) ** 2) / (len(residuals) - num_free))
