"""Inline SVG plots of one fit: measured times with their spread and the fitted curve, and relative residuals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2, log10

import numpy as np

from autosbp.costmodel.calibration import CollectiveFit
from autosbp.costmodel.network import fitted_s

WIDTH, HEIGHT, RESIDUAL_HEIGHT = 360, 220, 110
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 8, 30
_STEPS = 64


@dataclass(frozen=True, slots=True)
class _Scale:
    """Map values in [low, high], after the transform ``of``, linearly to pixels in [start, stop]."""

    low: float
    high: float
    start: float
    stop: float
    of: Callable[[float], float]

    def __call__(self, value: float) -> float:
        share = (self.of(value) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.stop - self.start), 1)


def time_plot(fit: CollectiveFit) -> str:
    """Time over message size, both logarithmic. Bars are interquartile ranges, hollow points outliers, dashed lines knots."""
    x = _sizes(fit)
    values = [point.median_s for point in fit.points]
    y = _Scale(floor(log10(min(values))), ceil(log10(max(values)) + 1e-9), HEIGHT - BOTTOM, TOP, log10)
    parts = [_frame(HEIGHT), *_size_ticks(x, HEIGHT)]
    for power in range(int(y.low), int(y.high) + 1):
        parts.append(_tick(y(10.0**power), seconds_text(10.0**power)))
    parts += [_knot(x(size), HEIGHT) for size, _ in fit.knots]
    sizes = [float(size) for size in np.geomspace(fit.points[0].num_bytes, fit.points[-1].num_bytes, _STEPS)]
    curve = [(x(size), y(time)) for size, time in zip(sizes, fitted_s(fit, np.array(sizes)), strict=True)
             if log10(max(time, 1e-30)) >= y.low]  # fmt: skip
    parts.append(f'<polyline class="fit" points="{" ".join(f"{at},{height}" for at, height in curve)}"/>')
    for point in fit.points:
        low = max(point.median_s - point.iqr_s / 2, 10.0**y.low)
        at, top, bottom = x(point.num_bytes), y(min(point.median_s + point.iqr_s / 2, 10.0**y.high)), y(low)
        parts.append(f'<line class="spread" x1="{at}" x2="{at}" y1="{top}" y2="{bottom}"/>')
        parts.append(_point(at, y(point.median_s), point.num_bytes in fit.outliers,
                            f"{bytes_text(point.num_bytes)}: {seconds_text(point.median_s)}"))  # fmt: skip
    return _svg(parts, HEIGHT, "time by message size")


def residual_plot(fit: CollectiveFit) -> str:
    """Relative residuals: fitted over measured time minus one, in percent."""
    x = _sizes(fit)
    predicted = fitted_s(fit, np.array([point.num_bytes for point in fit.points], dtype=np.float64))
    values = [100 * (float(time) / point.median_s - 1) for time, point in zip(predicted, fit.points, strict=True)]
    limit = max(5.0, *(abs(value) * 1.1 for value in values))
    y = _Scale(-limit, limit, RESIDUAL_HEIGHT - BOTTOM, TOP, float)
    parts = [_frame(RESIDUAL_HEIGHT), *_size_ticks(x, RESIDUAL_HEIGHT)]
    parts += [_tick(y(value), f"{value:+.0f} %") for value in (-limit / 1.1, 0.0, limit / 1.1)]
    for point, value in zip(fit.points, values, strict=True):
        at = x(point.num_bytes)
        parts.append(f'<line class="spread" x1="{at}" x2="{at}" y1="{y(0.0)}" y2="{y(value)}"/>')
        parts.append(
            _point(at, y(value), point.num_bytes in fit.outliers, f"{bytes_text(point.num_bytes)}: {value:+.1f} %")
        )
    return _svg(parts, RESIDUAL_HEIGHT, "relative residuals")


def _sizes(fit: CollectiveFit) -> _Scale:
    sizes = [point.num_bytes for point in fit.points]
    low, high = floor(log2(min(sizes))), ceil(log2(max(sizes)))
    return _Scale(low, max(high, low + 1), LEFT + 6, WIDTH - RIGHT - 6, log2)


def _size_ticks(x: _Scale, height: float) -> list[str]:
    step = max(1, ceil((x.high - x.low) / 5))
    return [
        f'<text class="x" x="{x(2.0**power)}" y="{height - BOTTOM + 16}">{bytes_text(2**power)}</text>'
        for power in range(int(x.low), int(x.high) + 1, step)
    ]


def _tick(at: float, label: str) -> str:
    line = f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>'
    return f'{line}<text class="y" x="{LEFT - 5}" y="{at + 4}">{label}</text>'


def _knot(at: float, height: float) -> str:
    return f'<line class="knot" x1="{at}" x2="{at}" y1="{TOP}" y2="{height - BOTTOM}"/>'


def _point(at: float, height: float, outlier: bool, title: str) -> str:
    kind = "outlier" if outlier else "point"
    return f'<circle class="{kind}" cx="{at}" cy="{height}" r="3.5"><title>{title}</title></circle>'


def _frame(height: float) -> str:
    width, inner = WIDTH - LEFT - RIGHT, height - TOP - BOTTOM
    return f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{width}" height="{inner}"/>'


def _svg(parts: Sequence[str], height: float, label: str) -> str:
    return f'<svg role="img" aria-label="{label}" width="{WIDTH}" height="{height}">{"".join(parts)}</svg>'


def bytes_text(value: float) -> str:
    for scale, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value:.4g} B"


def seconds_text(value: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= scale * (1 - 1e-9):
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"
