"""Time limit of a search, and how the search ends when it is over."""

from __future__ import annotations

import time
from collections.abc import Callable

from autosbp.search.branch_and_bound.incumbent import Incumbent
from autosbp.utils.parallel import is_child

Report = Callable[[float], bool]
"""Callback with the best step time in seconds so far (inf before there is one); returns whether to continue."""
GRACE_SHARE = 0.25
"""Grace period after the deadline for work already started, as a fraction of the time limit."""
MIN_SEARCH_SHARE = 0.1
"""Minimum share of the time limit for one more search, so that there always is an answer."""
MIN_FIRST_SEARCH_S = 2.0
"""Minimum seconds of a search while there is no strategy: as much as under the default time limit."""


class OutOfTimeError(Exception):
    """Time is over, and what was found is the answer. Never leaves the search."""


class Clock:
    """A deadline in ``time.monotonic()`` seconds, after which no work starts, and an ``end`` for started work.

    Started work stops at its first ``require_time`` after ``end``: between two solved problems or costed strategies.

    Args:
        limit_s: time limit in seconds.
        deadline: after which no work starts.
        incumbent: without a best strategy, the search continues until there is one, however long that takes.
        report: if it returns False, the search is ``stopped``, as at ``end``.

    Attributes:
        gives_up: the search may end without a strategy, because its caller has another.
        enough_s: the search ends once a step takes no longer.
        late: some work was skipped because time was over.
    """

    def __init__(self, limit_s: float, deadline: float, incumbent: Incumbent, report: Report | None = None) -> None:
        self.limit_s, self.incumbent, self.report = limit_s, incumbent, report
        self.may_end_empty = self.stopped = self.late = False
        self.enough_s = 0.0
        self.set_deadline(deadline)

    def set_deadline(self, deadline: float) -> None:
        self.deadline = deadline
        self.end = deadline + GRACE_SHARE * self.limit_s

    def extend(self, share: float, began: float) -> None:
        """Leave at least a share of the time limit.

        ``end`` is then between one and two time limits after ``began``, the start of the work on the plan.
        """
        self.set_deadline(max(self.deadline, time.monotonic() + share * self.limit_s))
        self.end = min(max(self.end, began + self.limit_s), began + 2 * self.limit_s)

    def require_time(self) -> None:
        """Raise ``OutOfTimeError`` at ``end``, if there is a strategy or the clock ``gives_up``."""
        over = self.stopped or self.incumbent.cutoff_s <= self.enough_s or time.monotonic() >= self.end
        if over and (self.incumbent.best is not None or self.may_end_empty):
            raise OutOfTimeError

    def out_of_time(self) -> bool:
        """Whether no more work starts. Call before work that would start, as it sets ``late``."""
        over = self.stopped or time.monotonic() >= self.deadline
        self.late |= over
        return over

    def is_over(self) -> bool:
        """Whether no more work starts, and there is a strategy or a caller stopped the search."""
        return (self.incumbent.best is not None or self.stopped) and self.out_of_time()

    def remaining_s(self) -> float:
        first_s = MIN_FIRST_SEARCH_S if self.incumbent.best is None and not self.may_end_empty else 0.0
        return max(self.deadline - time.monotonic(), MIN_SEARCH_SHARE * self.limit_s, first_s)

    def tell(self) -> bool:
        """Report the best step time so far (a problem's cost may exceed the memory); returns whether to continue."""
        if self.report is not None and not self.stopped and not is_child():
            self.stopped = not self.report(self.incumbent.cutoff_s)
        return not self.stopped

    def wait(self) -> None:
        """Report while another process works. That process knows the time, but not that a caller stopped the search."""
        self.tell()
        if self.stopped:
            self.require_time()
