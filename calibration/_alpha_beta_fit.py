"""Fit alpha (latency) and beta (inverse bandwidth) of one collective to its measured points.

The model is linear in both (``autosbp.costmodel.network``): ``time = alpha_count alpha + beta_factor bytes beta``. If
the points show that the rate changes with size (a protocol switch, a cache that overflows), beta changes at a measured
size, called a knot. Time stays continuous and never falls with size. ``autosbp.calibration._fit_pooling`` lets collectives that
cannot be told apart share one fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import f as f_distribution

from autosbp.calibration._measurements import Rows
from autosbp.calibration._regression import OUTLIER_WEIGHT, SCALE_FLOOR, LineFit, ordinary_least_squares
from autosbp.costmodel.calibration import METHODS, CollectiveFit, Point
from autosbp.errors import CalibrationError, InputError

MIN_POINTS = 3
MAX_KNOTS = 3
KNOT_SIGNIFICANCE = 0.01
MIN_GAIN = 0.5  # a knot must at least halve the relative error: finer fits do not predict better
_Array = NDArray[np.float64]


def fit_collective(
    kind: str, group_shape: tuple[int, ...], points: Sequence[Point], method: str = "relative"
) -> CollectiveFit:
    """Fit ``points`` of one kind and group shape.

    Args:
        method: ``relative`` minimizes relative residuals (weights 1/time) with alpha >= 0 and beta > 0, Huber weights
            against outliers, and knots where the points require them. ``ols`` is AutoDDL's plain least squares (section
            3.2): large messages dominate it, and its alpha may be negative.

    Raises:
        CalibrationError: fewer than three points or two sizes, or times that are not positive and finite; names the
            measurement.
    """
    if method not in METHODS:
        raise InputError("method", method, f"expected one of {', '.join(METHODS)}")
    _check(f"{kind} over {'x'.join(map(str, group_shape))}", points)
    rows = Rows.of(kind, group_shape, points)
    if method == "ols":
        return fit_of(kind, group_shape, points, (), ordinary_least_squares(rows.columns(()), rows.times))
    knots, line = _with_knots(rows)
    weighed = zip(points, line.weights, strict=True)
    outliers = tuple(point.num_bytes for point, weight in weighed if weight < OUTLIER_WEIGHT)
    return replace(fit_of(kind, group_shape, points, knots, line), outliers=outliers)


def fit_of(
    kind: str, group_shape: tuple[int, ...], points: Sequence[Point], knots: Sequence[int], line: LineFit
) -> CollectiveFit:
    """Evaluate ``line`` on these points; it may have been fitted to other points as well."""
    rows = Rows.of(kind, group_shape, points)
    predicted: _Array = rows.columns(knots) @ line.values
    residuals = predicted - rows.times
    errors = np.abs(residuals / rows.times)
    spread = float(np.sum((rows.times - rows.times.mean()) ** 2))
    unexplained = float(np.sum(residuals**2))
    r2 = 1.0 - unexplained / spread if spread > 0 else float(unexplained == 0)
    betas = [float(beta) for beta in line.values[1:]]
    return CollectiveFit(
        kind, group_shape, float(line.values[0]), betas[0], r2, float(np.median(errors)), float(errors.max()), tuple(points),
        knots=tuple(zip(knots, betas[1:], strict=True)),
        alpha_interval_s=line.interval(0),
        beta_interval_s_per_byte=line.interval(1),
    )  # fmt: skip


def _with_knots(rows: Rows) -> tuple[tuple[int, ...], LineFit]:
    """Add the best knot as long as an F-test of the robust residuals finds it significant."""
    knots: tuple[int, ...] = ()
    best = rows.fit(knots)
    candidates = [int(size) for size in np.unique(rows.sizes)[1:-1]]
    while len(knots) < MAX_KNOTS:
        left = len(rows.sizes) - best.values.size - 2  # a knot has two parameters: its beta and its position
        trials = [tuple(sorted((*knots, size))) for size in candidates if size not in knots]
        if left < 1 or not trials:
            break
        fits = [(rows.fit(trial), trial) for trial in trials]
        line, chosen = min(fits, key=lambda pair: pair[0].loss)
        gain = (best.loss - line.loss) / 2 / max(line.loss / left, 1e-300)
        chance = len(trials) * f_distribution.sf(
            gain, 2, left
        )  # Bonferroni correction for choosing the best of the trials
        enough = line.rms_error <= MIN_GAIN * best.rms_error and best.rms_error > SCALE_FLOOR
        if not enough or chance > KNOT_SIGNIFICANCE:
            break
        knots, best = chosen, line
    return knots, best


def _check(name: str, points: Sequence[Point]) -> None:
    if len(points) < MIN_POINTS or len({point.num_bytes for point in points}) < 2:
        raise CalibrationError(
            f"{name}: {len(points)} points are too few for a fit; expected at least {MIN_POINTS} of two sizes"
        )
    for point in points:
        if not (math.isfinite(point.median_s) and point.median_s > 0 and point.num_bytes > 0):
            raise CalibrationError(
                f"{name}, {point.num_bytes} bytes: measured time of {point.median_s} s is not positive and finite"
            )
