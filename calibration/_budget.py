"""How long each measurement may take, so that all of them together keep to the run's time box.

The box holds the whole run, the start of the ranks among it. What comes behind the collectives has its part set aside;
where that is more than ``LATER`` of what the start has left, it is shortened. Series (the sizes of one collective over one
placement) share what is left equally, but for variants, which no plan is charged with and which get half; within a series
so do the sizes. Small messages need less than their share and leave it to the large ones, quick placements to slow ones.
The largest sizes, and the lightest ops, are left out where even the fewest calls would not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

from calibration._request import MIN_SIZES, OVERLAP, SHARING, Request, op_name, waitings
from calibration._timing import LEAST_CALLS

LATER = 0.5
WAITING_S = 1.0
OVERLAP_S, SHARING_S = 6.0, 8.0
OP_S = 0.15
"""What an op takes besides its two boxes: its inputs are made, and it warms up."""
LEAST_OPS = 8
"""The first ops are timed in any case: others are predicted from them."""
END_S = 4.0
"""Ranks end, and their results are read."""
VARIANT_SHARE = 0.5
MAX_START_S = 60.0
"""The most of the box that the start of the ranks is charged; clocks of two machines may differ."""


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


class RunBudget:
    """The time box of a run that has ``made`` some measurements before.

    ``passed_s`` gives the seconds since the run was asked for, the same on every rank.
    """

    def __init__(self, request: Request, made: Container[str], passed_s: Callable[[], float]) -> None:
        self._passed_s, self._end_s = passed_s, request.budget_s - END_S
        waiting_s = sum(min(request.point_s, WAITING_S) for one in waitings(request) if one.name not in made)
        ops_s = sum(2 * request.op_s + OP_S for key in request.op_keys if op_name(key) not in made)
        behind_s = OVERLAP_S * (OVERLAP not in made) + SHARING_S * (SHARING not in made) + ops_s
        part = min(1.0, LATER * max(self.left_s, 0.0) / max(waiting_s + behind_s, 1e-9))
        self._after_waiting_s = part * behind_s
        self._after_collectives_s = part * (waiting_s + behind_s)

    @property
    def left_s(self) -> float:
        """Seconds of the whole box; a collective call of all ranks."""
        return self._end_s - self._passed_s()

    def series_s(self, share: float, shares_left: float) -> float:
        """Seconds for a series with this share of what is left for collectives, of which so many shares are left."""
        return (self.left_s - self._after_collectives_s) * share / shares_left

    def waiting_s(self, num_left: int) -> float:
        """Seconds for the next of so many measurements of waiting."""
        return (self.left_s - self._after_waiting_s) / num_left

    def op_s(self, num_left: int) -> float:
        """Seconds for the next of so many ops; none are left where it is not above 0."""
        return self.left_s / num_left
