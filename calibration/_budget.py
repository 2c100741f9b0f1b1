"""How long each measurement may take, so that all of them together keep to the run's time box.

Series (the sizes of one collective over one placement) share what is left of the box equally; within a series so do the
sizes. Small messages need less than their share and leave it to the large ones, quick placements to slow ones. The
largest sizes are left out where even the fewest calls would not fit.
"""

from __future__ import annotations

from dataclasses import dataclass

from calibration._request import MIN_SIZES
from calibration._timing import LEAST_CALLS


@dataclass(slots=True)
class SeriesBudget:
    """``left_s`` is what the series may still use. Sizes come in ascending order; ``made`` counts those measured."""

    left_s: float
    num_sizes: int
    made: int = 0
    last_bytes: int = 0
    last_s: float = 0.0

    def fits(self, num_bytes: int) -> bool:
        """Whether the fewest calls of this size fit, if time grows no faster than size; the first sizes always do."""
        if self.made < MIN_SIZES:
            return True
        return LEAST_CALLS * self.last_s * num_bytes / self.last_bytes <= self.left_s

    def box_s(self, point_s: float) -> float:
        """Seconds for the next size."""
        return max(min(point_s, self.left_s / max(self.num_sizes - self.made, 1)), 0.0)

    def took(self, num_bytes: int, median_s: float, used_s: float) -> None:
        """A size was measured."""
        self.made += 1
        self.last_bytes, self.last_s = num_bytes, median_s
        self.left_s -= used_s
