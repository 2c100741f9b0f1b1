"""The searcher that proves what it returns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from autosbp.errors import InfeasibleError
from autosbp.search._base import Edge, SearchOptions, SearchProblem, SearchResult
from autosbp.search.certificate import CP_SAT, ELIMINATION, ENUMERATION, RELAXATION, Certificate, Shift
from autosbp.search.searchers.chain import Chain
from autosbp.search.searchers.coordinate_descent import cheapest_values, descend
from autosbp.search.searchers.elimination import effort_of, minimise, plan_problem
from autosbp.search.searchers.exhaustive import exhaustive
from autosbp.search.searchers.forest import solve_forest
from autosbp.search.searchers.local import Neighbourhood
from autosbp.search.searchers.memory import (
    Meet,
    by_elimination,
    least_memory,
    mix_prices,
    quick_bound,
    solve_dual,
    splice,
    sum_below,
)
from autosbp.search.searchers.messages import Messages, Shifts, best_price, sweeps
from autosbp.search.searchers.order import Program
from autosbp.search.searchers.pruning import Reduced, canonical, prune, select
from autosbp.search.searchers.run import Run, forbidden

ENUMERATE_AT_MOST = 20_000
SPLIT_TABLE_ENTRIES = 1 << 20  # once tables must be split, exactness is gone, and a quick bound is worth more
SAT_WORK_PER_S = 0.25  # CP-SAT's deterministic seconds, which last longer than real ones, per second of the limit
SPLICE_LAST = 4
MIN_REST = 0.25  # of the time limit, for the searcher of dense problems
HARD_WORK = 4e8  # additions of an elimination; messages, which mostly prove as much, are quicker then
MOST_WORK = 2e9  # of one elimination of several, where messages left a gap
MOST_ENTRIES = 3e7  # of all tables that an elimination keeps: 240 MB, a quarter of what a search may take
DENSE_GAP = 0.02  # where messages leave more, what is still hard to eliminate gets other means
Dense = Callable[[SearchProblem, SearchOptions], SearchResult]


class _TooDense(Exception):
    """Tables would have to be split; over the values that are left."""

    def __init__(self, left: Reduced) -> None:
        super().__init__()
        self.left = left


class _Stop(Exception):
    """The run's limits struck inside a long computation, or the gap that the caller tolerates was reached."""


def exact(problem: SearchProblem, options: SearchOptions) -> SearchResult:
    """Find an optimum and prove it, or return the best found with a sound lower bound.

    Variable elimination with min-plus products over hash-consed tables: a block repeated L times costs O(log L)
    distinct products, so layers need not be tied as in AutoDDL's section 4.6. A memory limit is relaxed with a price
    (Lagrangian bound, cutting planes over the price); the gap that remains is closed by enumeration or CP-SAT on the
    values that reduced costs leave, when few enough are left. Where tables are large, messages (TRW-S) come first: their
    bound mostly meets an assignment, or leaves few values to eliminate. Where tables would still grow past memory, they are
    split (mini-buckets): the bound stays sound, the gap may stay open.

    ``certificate`` holds what ``checker.check_certificate`` verifies the bound with; None where it stopped before any bound.
    ``evaluations`` counts assignments costed. ``info`` holds, of what was needed, ``distinct_products``,
    ``operations`` (min-plus additions), ``duals`` (Lagrangian evaluations), ``price_s_per_byte``,
    ``kept_values`` and ``rounds``.

    Raises:
        InfeasibleError: no assignment is feasible (proved): ``memory_limit_bytes`` with the least memory that would
            do, or ``cost_s`` where forbidden pairs leave nothing. Or none was met before it had to stop.
    """
    return solve_exactly(problem, options, None)


def solve_exactly(
    problem: SearchProblem, options: SearchOptions, whole: Reduced | None, dense: Dense | None = None
) -> SearchResult:
    """``exact``; ``whole`` is the problem as ``canonical`` has it, where both were checked and made already. ``dense`` is asked
    instead of tables that are split, for the values that are left, with what is left of the options."""
    run = Run("exact", problem, options, checked=whole is not None)
    search = _Exact(run, whole, splits=dense is None)
    try:
        search.solve()
    except _Stop:
        pass
    except _TooDense as stopped:
        assert dense is not None
        return _by_other_means(dense, stopped.left, run)
    result = run.result(search.info)
    return replace(result, certificate=search.certificate(result))


def _by_other_means(dense: Dense, left: Reduced, run: Run) -> SearchResult:
    """What another searcher makes of the values left, which hold every assignment that is better than the best so far."""
    options, start = run.options, None if run.best is None else left.lower(run.best)
    limit_s = max(run.remaining_s, MIN_REST * options.time_limit_s)
    try:
        found = dense(left.problem, replace(options, start=start, time_limit_s=limit_s))
    except InfeasibleError:
        if run.best is None:
            raise
        return run.result()
    run.offer(left.lift(found.assignment))
    run.raise_bound(min(found.lower_bound_s, run.cost_s))
    result = run.result(found.info)
    evaluations = result.evaluations + found.evaluations
    return replace(result, searcher=found.searcher, stopped=found.stopped, evaluations=evaluations)


@dataclass(slots=True)
class _Exact:
    """``relaxed_s`` is the best bound of a relaxation, ``price_s_per_byte`` the price that gives it, ``shifts`` what shows it
    at once."""

    run: Run
    whole: Reduced | None
    splits: bool = True
    narrowed: bool = False  # relaxations are over values that one of them left, at its price
    info: dict[str, float] = field(default_factory=dict)
    relaxed_s: float = -math.inf
    price_s_per_byte: float = 0.0
    closed_by: str = RELAXATION
    shifts: Shifts | None = None
    whole_edges: tuple[Edge, ...] = ()  # that these are of
    left: Reduced | None = None  # what bounds of relaxations are over, where values were left out before

    def check(self) -> None:
        if self.run.should_stop():
            raise _Stop

    def raise_relaxed(self, bound_s: float, price_s_per_byte: float = 0.0, shifts: Shifts | None = None) -> None:
        """Record a bound, and the price of memory at which the relaxation gives it."""
        if self.narrowed:
            self.raise_closed(bound_s, ELIMINATION)
        elif bound_s > self.relaxed_s:
            self.relaxed_s, self.price_s_per_byte, self.shifts = bound_s, price_s_per_byte, shifts
        self.run.raise_bound(bound_s)

    def raise_closed(self, bound_s: float, closed_by: str) -> None:
        """Record a bound that elimination, enumeration or CP-SAT proved over the values left."""
        if bound_s > self.run.bound_s:
            self.closed_by = closed_by
        self.run.raise_bound(bound_s)

    def certificate(self, result: SearchResult) -> Certificate | None:
        bound = result.lower_bound_s
        if not math.isfinite(self.relaxed_s):
            return None
        return Certificate(
            result.assignment, result.cost_s, result.memory_bytes, bound, min(self.relaxed_s, bound),
            self.price_s_per_byte, self.closed_by, None if self.left is None else _as_tuples(self.left),
            None if self.shifts is None or self.left is not None else self._shifts(),
        )  # fmt: skip

    def _shifts(self) -> tuple[Shift, ...]:
        assert self.shifts is not None
        return tuple(
            (edge.u, edge.v, tuple(own.tolist()), tuple(other.tolist()))
            for edge, (own, other) in zip(self.whole_edges, self.shifts, strict=True)
        )

    def solve(self) -> None:
        run = self.run
        if run.problem.memory_limit_bytes is None and self._solve_small():
            return
        given = whole = self.whole or canonical(run.problem)
        program = plan_problem(whole.problem)
        if run.problem.memory_limit_bytes is None:
            if _is_hard(whole.problem, program):
                whole = self._pass_messages(whole)
                if self._is_settled or run.options.rough:
                    return
                program = plan_problem(whole.problem)
            if self._at_once(whole, program):
                return
        near = Neighbourhood.of(given.problem)
        if run.best is None or run.problem.memory_limit_bytes is not None:
            first = list(run.options.start) if run.options.start is not None else cheapest_values(near)
            descend(near, first, run)
        if run.best is None:
            self._require_feasible(whole)
        reduced = prune(whole, run.cost_s)
        self.left = None if reduced is given else reduced
        self.raise_relaxed(quick_bound(reduced.problem, self.check))
        if run.problem.memory_limit_bytes is not None and _is_hard(reduced.problem, plan_problem(reduced.problem)):
            reduced = self._price_messages(reduced, near)
            if run.is_close:
                return
            if _is_hard(reduced.problem, plan_problem(reduced.problem), MOST_WORK) and run.gap <= DENSE_GAP:
                self._close(reduced)
                return
            self.narrowed = True
        self.info["kept_values"] = float(sum(len(values) for values in reduced.values))
        price = self._relax(reduced, near)
        if not run.is_close:
            self._close(prune(reduced, run.cost_s, price))

    def _solve_small(self) -> bool:
        """Small forests at once; what prepares for greater problems takes longer than they do."""
        problem = self.run.problem
        solution = solve_forest(problem)
        if solution is None:
            return False
        if math.isinf(solution.bound_s):
            raise forbidden()
        self.run.offer(solution.assignment)
        self.raise_relaxed(sum_below(problem.fixed_s, solution.bound_s))
        self.info.update(
            kept_values=float(sum(map(len, problem.unary_s))), rounds=1.0, duals=1.0, price_s_per_byte=0.0,
            distinct_products=float(solution.distinct_products), operations=float(solution.operations),
        )  # fmt: skip
        return True

    @property
    def _is_settled(self) -> bool:
        """Whether more is of no use to anyone, whatever gap is tolerated: what is left is quick."""
        run = self.run
        return run.is_proved or (run.best is not None and run.bound_s >= run.options.cutoff_s)

    def _pass_messages(self, whole: Reduced) -> Reduced:
        """Raise the bound by messages, offer what they lead to, and leave out the values that no better assignment holds."""
        run, fixed_s = self.run, whole.problem.fixed_s
        messages = Messages(whole.problem, self.check)
        self.whole_edges = whole.problem.edges
        for values in sweeps(messages, lambda: run.cost_s - fixed_s):
            run.offer(whole.lift(values))
            self.raise_relaxed(sum_below(fixed_s, messages.bound_s), 0.0, messages.shifts)
            if self._is_settled:
                return whole
        if run.best is not None:
            descend(Neighbourhood.of(whole.problem), list(run.best), run)
        self.left = select(whole, messages.kept(run.cost_s - fixed_s))
        return prune(self.left, run.cost_s)

    def _price_messages(self, reduced: Reduced, near: Neighbourhood) -> Reduced:
        """As ``_pass_messages``, with prices of memory: where the bound is highest, few values are left."""
        run, problem = self.run, reduced.problem
        messages = Messages(problem, self.check)
        price = best_price(messages, self._meeting(reduced, near, []))
        if run.best is None or run.is_close:
            return reduced
        limit = problem.memory_limit_bytes
        assert limit is not None
        upper = run.cost_s - problem.fixed_s + price * (limit - problem.fixed_memory_bytes)
        messages.reprice([price] * problem.num_variables)
        for _ in sweeps(messages, lambda: upper):
            self.check()
        return prune(select(reduced, messages.kept(upper)), run.cost_s, price)

    def _at_once(self, whole: Reduced, program: Program | Chain) -> bool:
        """Without a memory limit one elimination is the answer, unless tables would have to be split."""
        if _is_too_great(whole.problem, program):
            return False
        solution = minimise(whole.problem, program, self.check)
        self.info["rounds"] = float(program.rounds)
        self.info["distinct_products"] = float(solution.distinct_products)
        self.info["operations"] = float(solution.operations)
        if math.isinf(solution.bound_s):
            raise forbidden()
        assignment = whole.lift(solution.assignment)
        self.run.offer(assignment)
        self.raise_relaxed(sum_below(whole.problem.fixed_s, solution.bound_s))
        return True

    def _meeting(
        self, reduced: Reduced, near: Neighbourhood, met: list[tuple[int, ...]], descends: bool = True
    ) -> Meet:
        """Takes what relaxations find."""
        run = self.run

        def meet(assignment: tuple[int, ...], bound_s: float, price_s_per_byte: float) -> tuple[int, ...] | None:
            self.raise_relaxed(bound_s, price_s_per_byte)
            if bound_s < math.inf:
                met.append(assignment)
                lifted = reduced.lift(assignment)
                run.offer(lifted)
                if not run.is_close and descends:
                    descend(near, list(lifted), run)
            if run.is_close and not run.is_proved:
                raise _Stop
            return None if run.best is None else reduced.lower(run.best)

        return meet

    def _relax(self, reduced: Reduced, near: Neighbourhood) -> float:
        """Raise the bound by the relaxation, offer what is met on the way, and return the best price of memory."""
        run, problem = self.run, reduced.problem
        program = plan_problem(problem)
        if _is_too_great(problem, program):
            if not self.splits:
                raise _TooDense(reduced)
            program = plan_problem(problem, SPLIT_TABLE_ENTRIES)
        met: list[tuple[int, ...]] = []
        meet = self._meeting(reduced, near, met, problem.memory_limit_bytes is not None or not program.is_exact)
        relax = by_elimination(problem, program, self.check)
        dual = solve_dual(problem, relax, meet)
        self.info["rounds"] = float(program.rounds)
        self.info["distinct_products"] = float(dual.distinct_products)
        self.info["operations"] = float(dual.operations)
        self.info["duals"] = float(dual.evaluations)
        self.info["price_s_per_byte"] = dual.price_s_per_byte
        if math.isinf(dual.bound_s):
            raise forbidden()
        if not run.is_proved:
            around_limit = met[-SPLICE_LAST:]
            mix_prices(problem, relax, dual.price_s_per_byte, meet)
            for before, behind in itertools.permutations(around_limit, 2):
                self.check()
                spliced = splice(problem, before, behind)
                if spliced is not None:
                    meet(spliced, -math.inf, 0.0)
        return dual.price_s_per_byte

    def _require_feasible(self, whole: Reduced) -> None:
        """Offer the feasible assignment of least memory, or prove that there is none."""
        least = least_memory(whole.problem, self.check)
        if math.isinf(least.bound_s):
            raise forbidden()
        limit, needed = whole.problem.memory_limit_bytes, least.bound_s + whole.problem.fixed_memory_bytes
        if limit is not None and needed > limit:
            raise InfeasibleError("memory_limit_bytes", limit, needed, "no assignment fits (proved)")
        self.run.offer(least.assignment)

    def _close(self, reduced: Reduced) -> None:
        """Close the gap over the values left, which hold every assignment as good as the incumbent."""
        # Importing CP-SAT takes longer than most searches, and few come to here.
        from autosbp.search.searchers.cpsat import MAX_ENTRIES, SatLimits, close_gap, num_entries

        run, problem = self.run, reduced.problem
        self.info["open_values"] = float(sum(len(values) for values in reduced.values))
        self.check()
        if problem.num_assignments <= ENUMERATE_AT_MOST:
            options = SearchOptions(
                time_limit_s=max(run.remaining_s, 1e-3), progress=lambda _cost, _bound: not run.should_stop()
            )
            best = exhaustive(problem, options)
            run.offer(reduced.lift(best.assignment))
            if best.stopped == "done":
                self.raise_closed(best.cost_s, ENUMERATION)
        elif num_entries(problem) <= MAX_ENTRIES:
            hint = None if run.best is None else reduced.lower(run.best)
            work = SAT_WORK_PER_S * run.options.time_limit_s * run.options.closing
            closed = close_gap(
                problem, run.cost_s, hint, SatLimits(run.options.seed, run.remaining_s, work, run.should_stop)
            )
            if closed is not None:
                self.raise_closed(closed.bound_s, CP_SAT)
                if closed.assignment is not None:
                    run.offer(reduced.lift(closed.assignment))


def _is_hard(problem: SearchProblem, program: Program | Chain, most: float | None = None) -> bool:
    """Whether messages are quicker than an elimination."""
    if _is_too_great(problem, program):
        return True
    return effort_of(problem, program).additions > (HARD_WORK if most is None else most)


def _is_too_great(problem: SearchProblem, program: Program | Chain) -> bool:
    """Whether an elimination would have to split a table, or to keep more of them than there is room for."""
    return not program.is_exact or effort_of(problem, program).entries > MOST_ENTRIES


def _as_tuples(reduced: Reduced) -> tuple[tuple[int, ...], ...]:
    """The values left of each variable; equal ones are one object."""
    known: dict[bytes, tuple[int, ...]] = {}
    for values in reduced.values:
        if values.tobytes() not in known:
            known[values.tobytes()] = tuple(int(value) for value in values)
    return tuple(known[values.tobytes()] for values in reduced.values)
