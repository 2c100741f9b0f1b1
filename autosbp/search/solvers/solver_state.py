"""State of a running searcher: the clock, the limits, the incumbent and the lower bound."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from autosbp.errors import InfeasibleError
from autosbp.search._base import SearchOptions, SearchProblem, SearchResult, cost_of, memory_of
from autosbp.search.solvers.validate import check_options, validate

PROGRESS_INTERVAL_S = 0.1
# A bound this close to the cost (relative to the sum of the absolute terms) differs from it by float rounding alone.
PROVED_RELATIVE = 1e-10


class SolverState:
    """Bookkeeping of one call of one searcher. Not shared between threads.

    Args:
        searcher: the name in the result.
        problem, options: checked here, so that every searcher rejects the same mistakes with ``InputError``.
        clock: seconds, monotonic.
        checked: the caller has already checked them.
    """

    def __init__(
        self,
        searcher: str,
        problem: SearchProblem,
        options: SearchOptions,
        clock: Callable[[], float] = time.perf_counter,
        checked: bool = False,
    ) -> None:
        if not checked:
            validate(problem)
            check_options(problem, options)
        self.problem, self.options = problem, options
        self.best: tuple[int, ...] | None = None
        self.cost_s = math.inf
        self.bound_s = -math.inf
        self.evaluations = 0
        self.stopped = "done"
        self._searcher, self._clock = searcher, clock
        self._memory_bytes = 0
        self._trace: list[tuple[float, float]] = []
        self._began_s = clock()
        self._reported_s = 0.0  # since the start
        if options.start is not None:
            self.offer(options.start)

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._began_s

    @property
    def remaining_s(self) -> float:
        return self.options.time_limit_s - self.elapsed_s

    def offer(self, assignment: Sequence[int]) -> bool:
        """Cost an assignment by the definition, and keep it if it is feasible and better. Counts one evaluation."""
        self.evaluations += 1
        candidate = tuple(int(value) for value in assignment)
        memory = memory_of(self.problem, candidate)
        if self.problem.memory_limit_bytes is not None and memory > self.problem.memory_limit_bytes:
            return False
        cost = cost_of(self.problem, candidate)
        if not cost < self.cost_s:
            return False
        self.best, self.cost_s, self._memory_bytes = candidate, cost, memory
        self._trace.append((self._clock() - self._began_s, cost))
        return True

    def raise_bound(self, bound_s: float) -> None:
        """Record that no feasible assignment costs less than ``bound_s``."""
        self.bound_s = max(self.bound_s, bound_s)

    def should_stop(self) -> bool:
        """True once a limit struck or ``progress`` returned False; ``stopped`` says which."""
        if self.stopped != "done":
            return True
        elapsed = self._clock() - self._began_s
        limit = self.options.max_evaluations
        if elapsed >= self.options.time_limit_s:
            self.stopped = "time_limit"
        elif limit is not None and self.evaluations >= limit:
            self.stopped = "max_evaluations"
        elif self.options.progress is not None and elapsed - self._reported_s >= PROGRESS_INTERVAL_S:
            self.report()
        return self.stopped != "done"

    def report(self, elsewhere_s: float = math.inf) -> None:
        """Call ``progress``, and stop if it returns False.

        ``elsewhere_s`` is a cost reached by a part that has not been joined yet."""
        self._reported_s = self.elapsed_s
        progress = self.options.progress
        if progress is not None and not progress(min(self.cost_s, elsewhere_s), self.bound_s):
            self.stopped = "cancelled"

    @property
    def is_report_due(self) -> bool:
        """Whether it is time to ``report``."""
        return self.options.progress is not None and self.elapsed_s - self._reported_s >= PROGRESS_INTERVAL_S

    @property
    def remaining_evaluations(self) -> int | None:
        """Evaluations left; None for no limit."""
        limit = self.options.max_evaluations
        return None if limit is None else max(limit - self.evaluations, 0)

    @property
    def trace(self) -> tuple[tuple[float, float], ...]:
        return tuple(self._trace)

    def part(self, options: SearchOptions) -> SolverState:
        """A new run for a part of the work, without results, on the same clock."""
        own = copy.copy(self)
        own.options, own.evaluations, own.stopped = options, 0, "done"
        own.best, own.cost_s, own.bound_s, own._memory_bytes, own._trace = None, math.inf, -math.inf, 0, []
        return own

    def join(self, assignment: tuple[int, ...] | None, trace: Sequence[tuple[float, float]], evaluations: int) -> None:
        """Take over the results of a part.

        Parts are joined in a fixed order, whenever they ran: an improvement is dated at the time by which it and all
        earlier ones had been found."""
        self.evaluations += evaluations
        for at_s, cost in trace:
            if cost < self.cost_s:
                since = self._trace[-1][0] if self._trace else 0.0
                self._trace.append((max(at_s, since), cost))
                self.cost_s = cost
                self.best = assignment
        if self.best is not None and self.best is assignment:
            self._memory_bytes = memory_of(self.problem, self.best)

    def require_least_memory(self) -> None:
        """Reject a limit below the sum of the variables' least memories, which every assignment needs.

        Raises:
            InfeasibleError: with that sum as ``needed``.
        """
        limit = self.problem.memory_limit_bytes
        if limit is None:
            return
        needed = self.problem.fixed_memory_bytes + sum(int(use.min()) for use in self.problem.memory_bytes)
        if needed > limit:
            raise InfeasibleError("memory_limit_bytes", limit, needed)

    @property
    def magnitude_s(self) -> float:
        """Sum of the absolute terms of the best cost, to which its rounding error is relative."""
        if self.best is None:
            return math.inf
        total = abs(self.problem.fixed_s)
        total += sum(abs(float(c[x])) for c, x in zip(self.problem.unary_s, self.best, strict=True))
        return total + sum(abs(float(e.table[self.best[e.u], self.best[e.v]])) for e in self.problem.edges)

    @property
    def is_proved(self) -> bool:
        return self.best is not None and self.cost_s - self.bound_s <= PROVED_RELATIVE * self.magnitude_s

    @property
    def gap(self) -> float:
        """Relative to the best cost; inf before there is one."""
        if self.best is None:
            return math.inf
        return max(self.cost_s - self.bound_s, 0.0) / (abs(self.cost_s) or math.ulp(0.0))

    @property
    def is_good_enough(self) -> bool:
        """Whether the incumbent is proved, within the tolerated gap, or cannot beat the caller's ``cutoff_s``."""
        if self.bound_s >= self.options.cutoff_s:
            return True
        tolerated = self.options.gap_tolerance * abs(self.cost_s)
        return self.is_proved or (self.best is not None and self.cost_s - self.bound_s <= tolerated)

    def result(self, info: dict[str, float] | None = None) -> SearchResult:
        """The best assignment; its bound is set to its cost if only rounding separates them.

        If a limit struck before any assignment was found, each variable's cheapest value, then its leanest, is still
        tried.

        Raises:
            InfeasibleError: no feasible assignment was found; the detail says that this is no proof.
        """
        if self.best is None and self.stopped != "done":
            self.offer([int(costs.argmin()) for costs in self.problem.unary_s])
            self.offer([int(use.argmin()) for use in self.problem.memory_bytes])
        if self.best is None:
            raise self._nothing_found()
        bound = self.cost_s if self.is_proved else min(self.bound_s, self.cost_s)
        missing = self.cost_s - bound
        gap = missing / (abs(self.cost_s) or math.ulp(0.0)) if missing > 0.0 else 0.0
        return SearchResult(
            assignment=self.best,
            cost_s=self.cost_s,
            memory_bytes=self._memory_bytes,
            lower_bound_s=bound,
            gap=gap,
            evaluations=self.evaluations,
            trace=self.trace,
            search_s=self._clock() - self._began_s,
            searcher=self._searcher,
            stopped=self.stopped,
            info=dict(info or {}),
        )

    def _nothing_found(self) -> InfeasibleError:
        detail = f"{self._searcher} found no feasible assignment ({self.stopped}); this is not a proof that none exists"
        limit = self.problem.memory_limit_bytes
        if limit is None:
            return InfeasibleError("cost_s", math.inf, None, detail)
        return InfeasibleError("memory_limit_bytes", limit, None, detail)


def all_forbidden_error() -> InfeasibleError:
    """Error of a searcher that has proved that every assignment has a forbidden value or pair."""
    return InfeasibleError("cost_s", math.inf, None, "every assignment has a forbidden value or pair (proved)")


def max_abs_finite(costs: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    """Largest absolute finite entry; 0 if there is none."""
    finite = costs[np.isfinite(costs)]
    return float(np.abs(finite).max()) if finite.size else 0.0
