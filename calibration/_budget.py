"""Time box of each measurement, chosen so that the whole run fits into its budget.

The budget covers the whole run, including the start of the ranks. Time for the measurements after the collectives is
reserved first, but at most the fraction ``MAX_RESERVED_FRACTION`` of what remains after the start. The series (sizes of one
collective over one placement) share the rest equally, except that variants, which are never charged to plans, get half a share.
Within a series the sizes share equally. Time that small messages do not need goes to large ones, and time that fast
placements do not need goes to slow ones. The largest sizes and the cheapest ops are skipped if not even the minimum
number of calls fits.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

from autosbp.calibration._request import CORE_CONTENTION, MIN_SIZES, OVERLAP, Request, arrival_delays, op_name
from autosbp.calibration._sampling import MIN_CALLS

MAX_RESERVED_FRACTION = 0.5
WAITING_S = 1.0
OVERLAP_S, SHARING_S = 6.0, 8.0
OP_S = 0.15
"""Seconds per op in addition to its two boxes, for creating inputs and warming up."""
MIN_OPS = 8
"""The first ops are always timed, because others are predicted from them."""
END_S = 4.0
"""Seconds reserved for ending the ranks and reading their results."""
VARIANT_SHARE = 0.5
MAX_START_S = 60.0
"""Maximum seconds of the budget charged for the start of the ranks, since the clocks of two machines may differ."""


@dataclass(slots=True)
class SeriesBudget:
    """Time box of one series. Sizes come in ascending order.

    ``left_s``: seconds that the series may still use; ``made``: number of sizes measured so far.
    """

    left_s: float
    num_sizes: int
    made: int = 0
    last_bytes: int = 0
    last_s: float = 0.0

    def fits(self, num_bytes: int) -> bool:
        """Whether the minimum number of calls fits, if time grows at most linearly with size; True for the first sizes."""
        if self.made < MIN_SIZES:
            return True
        return MIN_CALLS * self.last_s * num_bytes / self.last_bytes <= self.left_s

    def box_s(self, point_s: float) -> float:
        """Time box of the next size in seconds."""
        return max(min(point_s, self.left_s / max(self.num_sizes - self.made, 1)), 0.0)

    def record(self, num_bytes: int, median_s: float, used_s: float) -> None:
        """Record that a size was measured."""
        self.made += 1
        self.last_bytes, self.last_s = num_bytes, median_s
        self.left_s -= used_s


class RunBudget:
    """Time box of a run; measurements named in ``made`` are already done.

    ``passed_s`` returns the seconds since the run was requested, equal on every rank.
    """

    def __init__(self, request: Request, made: Container[str], passed_s: Callable[[], float]) -> None:
        self._passed_s, self._end_s = passed_s, request.budget_s - END_S
        waiting_s = sum(min(request.point_s, WAITING_S) for one in arrival_delays(request) if one.name not in made)
        ops_s = sum(2 * request.op_s + OP_S for key in request.op_keys if op_name(key) not in made)
        behind_s = OVERLAP_S * (OVERLAP not in made) + SHARING_S * (CORE_CONTENTION not in made) + ops_s
        part = min(1.0, MAX_RESERVED_FRACTION * max(self.left_s, 0.0) / max(waiting_s + behind_s, 1e-9))
        self._after_waiting_s = part * behind_s
        self._after_collectives_s = part * (waiting_s + behind_s)

    @property
    def left_s(self) -> float:
        """Seconds left of the whole budget; a collective call, so all ranks must make it."""
        return self._end_s - self._passed_s()

    def series_s(self, share: float, shares_left: float) -> float:
        """Seconds for a series that has ``share`` out of ``shares_left`` of the remaining time for collectives."""
        return (self.left_s - self._after_collectives_s) * share / shares_left

    def waiting_s(self, num_left: int) -> float:
        """Seconds for the next of ``num_left`` waiting measurements."""
        return (self.left_s - self._after_waiting_s) / num_left

    def op_s(self, num_left: int) -> float:
        """Seconds for the next of ``num_left`` ops; 0 or less if the time is used up."""
        return self.left_s / num_left
