"""How much time a search has left, and how it ends when there is none."""

from __future__ import annotations

import time

from autosbp.search.plan_options import PlanOptions
from autosbp.search.space.candidate import Candidate

SLACK = 0.25
"""Of the time limit: for how long behind the deadline what was begun by then may go on."""
LEAST = 0.1
"""Of the time limit: what one more search gets, always, so that there is an answer."""
FIRST_S = 2.0
"""Seconds that one gets at the least as long as there is none: what it gets under the usual limit."""


class OutOfTimeError(Exception):
    """Time is over: what is known is the answer. Never leaves search."""


class Timed:
    """A search with a deadline of ``time.monotonic``, behind which nothing is begun, and an ``end``, at which what was begun
    gives up where it next asks (``require_time``): between two problems that are solved, or strategies that are costed.

    Args:
        best: the best strategy so far. Without one, search goes on until there is one, however long that takes.
        gives_up: it ends without one, too: its caller has another.
        stopped: a caller ended it, as at the end.
        enough_s: a step that is no longer is as good as was asked for, and ends it likewise.
        late: something was left because time was over.
    """

    options: PlanOptions
    best: Candidate | None
    gives_up = False
    stopped = False
    enough_s = 0.0
    late = False

    def set_deadline(self, deadline: float) -> None:
        self.deadline = deadline
        self.end = deadline + SLACK * self.options.time_limit_s

    def extend(self, share: float, began: float) -> None:
        """Let no less than a share of the time limit be left; of a plan's work that ``began`` then, once or twice the limit is
        over where this gives up."""
        limit_s = self.options.time_limit_s
        self.set_deadline(max(self.deadline, time.monotonic() + share * limit_s))
        self.end = min(max(self.end, began + limit_s), began + 2 * limit_s)

    def require_time(self) -> None:
        """Raise ``OutOfTimeError`` at the end, where there is something to end with."""
        over = self.stopped or self._is_enough() or time.monotonic() >= self.end
        if over and (self.best is not None or self.gives_up):
            raise OutOfTimeError

    def _is_enough(self) -> bool:
        best = self.best
        return best is not None and best.costs.step_time_s <= self.enough_s

    def _out_of_time(self) -> bool:
        """Whether nothing is begun any more, asked where something would be."""
        over = self.stopped or time.monotonic() >= self.deadline
        self.late |= over
        return over

    def _is_over(self) -> bool:
        """Whether nothing is begun any more, and there is a strategy, or a caller ended the search."""
        return (self.best is not None or self.stopped) and self._out_of_time()

    def _remaining_s(self) -> float:
        first_s = FIRST_S if self.best is None and not self.gives_up else 0.0
        return max(self.deadline - time.monotonic(), LEAST * self.options.time_limit_s, first_s)
