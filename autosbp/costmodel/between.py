"""Times of an op at shapes that were not measured, from those that were.

What an op takes relative to its roofline time changes with its size: small ones pay for their launch, large ones leave the
caches. Between measured sizes the ratio is a mean of its neighbours', weighted by how near they are on a log scale.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WIDTH = 0.5
"""Standard deviation of the weights, in natural logs of the roofline time: a factor of 1.65."""


class RatioCurve:
    """Measured over roofline time of one op, as a function of the roofline time; beyond the ends it stays as there.

    Args:
        roofline_s, measured_s: of each measured shape; at least one.
    """

    def __init__(self, roofline_s: Floats, measured_s: Floats) -> None:
        self._sizes = np.log(roofline_s)
        self._ratios = np.log(measured_s / roofline_s)

    @property
    def typical(self) -> float:
        """The median over the measured shapes."""
        return float(np.exp(np.median(self._ratios)))

    def at(self, roofline_s: Floats) -> Floats:
        """The ratio at each of these roofline times."""
        sizes = np.clip(np.log(roofline_s), self._sizes.min(), self._sizes.max())
        squares = ((sizes[..., None] - self._sizes) / WIDTH) ** 2
        weights = np.exp(0.5 * (squares.min(axis=-1, keepdims=True) - squares))
        ratios: Floats = np.exp((weights * self._ratios).sum(axis=-1) / weights.sum(axis=-1))
        return ratios
