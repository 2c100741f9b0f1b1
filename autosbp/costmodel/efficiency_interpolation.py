"""Interpolated times of an op at unmeasured shapes.

The ratio of measured to roofline time depends on size: small ops are dominated by launch overhead, large ones exceed
the caches. Between measured sizes the ratio is a mean of its neighbours', weighted by distance on a log scale.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WIDTH = 0.5
"""Standard deviation of the weights, in natural logs of the roofline time: a factor of 1.65."""


class EfficiencyCurve:
    """Ratio of measured to roofline time of one op over roofline time; constant beyond the measured range.

    Args:
        roofline_s, measured_s: of each measured shape; at least one.
    """

    def __init__(self, roofline_s: Floats, measured_s: Floats) -> None:
        self._sizes = np.log(roofline_s)
        self._ratios = np.log(measured_s / roofline_s)

    @property
    def median_ratio(self) -> float:
        """Median ratio over the measured shapes."""
        return float(np.exp(np.median(self._ratios)))

    def at(self, roofline_s: Floats) -> Floats:
        """Ratios at these roofline times."""
        sizes = np.clip(np.log(roofline_s), self._sizes.min(), self._sizes.max())
        squares = ((sizes[..., None] - self._sizes) / WIDTH) ** 2
        weights = np.exp(0.5 * (squares.min(axis=-1, keepdims=True) - squares))
        ratios: Floats = np.exp((weights * self._ratios).sum(axis=-1) / weights.sum(axis=-1))
        return ratios
