"""The exact searcher: an optimum with a proof, or the best assignment found with a sound lower bound."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from autosbp.errors import InfeasibleError
from autosbp.search._base import Edge, SearchOptions, SearchProblem, SearchResult
from autosbp.search.certificate import CP_SAT, ELIMINATION, ENUMERATION, RELAXATION, Certificate, Shift
from autosbp.search.solvers.conditional_costs import Neighbourhood
from autosbp.search.solvers.coordinate_descent import cheapest_values, descend
from autosbp.search.solvers.elimination import effort_of, minimise, plan_problem
from autosbp.search.solvers.elimination_order import EliminationProgram
from autosbp.search.solvers.exhaustive import exhaustive
from autosbp.search.solvers.lagrangian import (
    IncumbentCallback,
    by_elimination,
    least_memory,
    quick_bound,
    rounded_down_sum,
    search_mixed_multipliers,
    solve_dual,
    splice,
)
from autosbp.search.solvers.reduced_cost_fixing import ReducedProblem, canonical, prune, select
from autosbp.search.solvers.repeated_chain import Chain
from autosbp.search.solvers.solver_state import SolverState, all_forbidden_error
from autosbp.search.solvers.tree_dp import solve_forest
from autosbp.search.solvers.trws import Shifts, TrwsMessages, best_multiplier, sweeps

ENUMERATE_AT_MOST = 20_000
SPLIT_TABLE_ENTRIES = 1 << 20  # once tables must be split, exactness is lost, and a quick bound is worth more
SAT_WORK_PER_S = 0.25  # CP-SAT's deterministic seconds, which take longer than real ones, per second of the limit
NUM_SPLICED = 4
MIN_TIME_SHARE = 0.25  # of the time limit, for the searcher of dense problems
MAX_FAST_ADDITIONS = 4e8  # additions of an elimination above which messages are faster and mostly prove as much
MAX_ADDITIONS = 2e9  # of one elimination of several, if messages left a gap
MAX_KEPT_ENTRIES = 3e7  # of all tables that an elimination keeps: 240 MB, a quarter of a search's memory
DENSE_GAP = 0.02  # if messages leave more, problems that are still hard to eliminate go to another searcher
Dense = Callable[[SearchProblem, SearchOptions], SearchResult]


class _TablesTooLarge(Exception):
    """Tables would have to be split; carries the problem over the values left."""

    def __init__(self, left: ReducedProblem) -> None:
        super().__init__()
        self.left = left


class _Stop(Exception):
    """A limit of the run struck inside a long computation, or the gap that the caller tolerates was reached."""


def exact(problem: SearchProblem, options: SearchOptions) -> SearchResult:
    """Find an optimum and prove it, or return the best found with a sound lower bound.

    Variable elimination with min-plus products over hash-consed tables: a block repeated L times costs O(log L)
    distinct products, so layers need not be tied as in AutoDDL's section 4.6. A memory limit is relaxed with a Lagrange
    multiplier (cutting planes over the multiplier, in seconds a byte). Enumeration or CP-SAT closes the remaining gap
    over the values that reduced costs leave, if these are few. If tables are large, messages (TRW-S) come first: their
    bound mostly meets an assignment, or leaves few values to eliminate. If tables would still outgrow memory, they are
    split (mini-buckets): the bound stays sound, the gap may stay open.

    ``certificate`` holds what ``checker.check_certificate`` verifies the bound with; None if the search stopped before
    any bound. ``evaluations`` counts assignments costed. ``info`` holds, where applicable, ``distinct_products``,
    ``operations`` (min-plus additions), ``duals`` (Lagrangian evaluations), ``price_s_per_byte``, ``kept_values`` and
    ``rounds``.

    Raises:
        InfeasibleError: no assignment is feasible (proved): ``memory_limit_bytes`` with the least memory that would
            suffice, or ``cost_s`` if forbidden pairs leave nothing. Or none was found before the search had to stop.
    """
    return solve_exactly(problem, options, None)


def solve_exactly(
    problem: SearchProblem, options: SearchOptions, whole: ReducedProblem | None, dense: Dense | None = None
) -> SearchResult:
    """``exact``, with optional shortcuts.

    Args:
        whole: the problem from ``canonical``, if the caller has already validated and reduced it.
        dense: searcher to call instead of splitting tables, with the values left and the rest of the options.
    """
    run = SolverState("exact", problem, options, checked=whole is not None)
    search = _Exact(run, whole, splits=dense is None)
    try:
        search.solve()
    except _Stop:
        pass
    except _TablesTooLarge as stopped:
        assert dense is not None
        return _solve_dense(dense, stopped.left, run)
    result = run.result(search.info)
    return replace(result, certificate=search.certificate(result))


def _solve_dense(dense: Dense, left: ReducedProblem, run: SolverState) -> SearchResult:
    """Result of another searcher over the values left, which hold every assignment better than the incumbent."""
    options, start = run.options, None if run.best is None else left.lower(run.best)
    limit_s = max(run.remaining_s, MIN_TIME_SHARE * options.time_limit_s)
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
    """State of one exact search.

    ``relaxed_s`` is the best bound of a relaxation, ``price_s_per_byte`` the Lagrange multiplier that gives it, and
    ``shifts`` the reparametrization that proves it directly."""

    run: SolverState
    whole: ReducedProblem | None
    splits: bool = True
    is_reduced: bool = False  # relaxations cover the values that another one left, at its multiplier
    info: dict[str, float] = field(default_factory=dict)
    relaxed_s: float = -math.inf
    price_s_per_byte: float = 0.0
    closed_by: str = RELAXATION
    shifts: Shifts | None = None
    whole_edges: tuple[Edge, ...] = ()  # edges of ``shifts``
    left: ReducedProblem | None = None  # values that relaxations cover, if some were removed before

    def check(self) -> None:
        if self.run.should_stop():
            raise _Stop

    def raise_relaxation_bound(
        self, bound_s: float, price_s_per_byte: float = 0.0, shifts: Shifts | None = None
    ) -> None:
        """Record a bound, and the Lagrange multiplier of memory at which the relaxation gives it."""
        if self.is_reduced:
            self.raise_closing_bound(bound_s, ELIMINATION)
        elif bound_s > self.relaxed_s:
            self.relaxed_s, self.price_s_per_byte, self.shifts = bound_s, price_s_per_byte, shifts
        self.run.raise_bound(bound_s)

    def raise_closing_bound(self, bound_s: float, closed_by: str) -> None:
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
                whole = self._reduce_by_messages(whole)
                if self._is_finished or run.options.rough:
                    return
                program = plan_problem(whole.problem)
            if self._eliminate_whole(whole, program):
                return
        near = Neighbourhood.of(given.problem)
        if run.best is None or run.problem.memory_limit_bytes is not None:
            first = list(run.options.start) if run.options.start is not None else cheapest_values(near)
            descend(near, first, run)
        if run.best is None:
            self._require_feasible(whole)
        reduced = prune(whole, run.cost_s)
        self.left = None if reduced is given else reduced
        self.raise_relaxation_bound(quick_bound(reduced.problem, self.check))
        if run.problem.memory_limit_bytes is not None and _is_hard(reduced.problem, plan_problem(reduced.problem)):
            reduced = self._reduce_by_penalised_messages(reduced, near)
            if run.is_good_enough:
                return
            if _is_hard(reduced.problem, plan_problem(reduced.problem), MAX_ADDITIONS) and run.gap <= DENSE_GAP:
                self._close_gap(reduced)
                return
            self.is_reduced = True
        self.info["kept_values"] = float(sum(len(values) for values in reduced.values))
        price = self._relax(reduced, near)
        if not run.is_good_enough:
            self._close_gap(prune(reduced, run.cost_s, price))

    def _solve_small(self) -> bool:
        """Solve small forests directly; preparing for larger problems takes longer than that."""
        problem = self.run.problem
        solution = solve_forest(problem)
        if solution is None:
            return False
        if math.isinf(solution.bound_s):
            raise all_forbidden_error()
        self.run.offer(solution.assignment)
        self.raise_relaxation_bound(rounded_down_sum(problem.fixed_s, solution.bound_s))
        self.info.update(
            kept_values=float(sum(map(len, problem.unary_s))), rounds=1.0, duals=1.0, price_s_per_byte=0.0,
            distinct_products=float(solution.distinct_products), operations=float(solution.operations),
        )  # fmt: skip
        return True

    @property
    def _is_finished(self) -> bool:
        """Whether more work is useless at any tolerated gap, as the rest is quick."""
        run = self.run
        return run.is_proved or (run.best is not None and run.bound_s >= run.options.cutoff_s)

    def _reduce_by_messages(self, whole: ReducedProblem) -> ReducedProblem:
        """Raise the bound by messages, offer their assignments, and remove values that no better assignment holds."""
        run, fixed_s = self.run, whole.problem.fixed_s
        messages = TrwsMessages(whole.problem, self.check)
        self.whole_edges = whole.problem.edges
        for values in sweeps(messages, lambda: run.cost_s - fixed_s):
            run.offer(whole.lift(values))
            self.raise_relaxation_bound(rounded_down_sum(fixed_s, messages.bound_s), 0.0, messages.shifts)
            if self._is_finished:
                return whole
        if run.best is not None:
            descend(Neighbourhood.of(whole.problem), list(run.best), run)
        self.left = select(whole, messages.kept(run.cost_s - fixed_s))
        return prune(self.left, run.cost_s)

    def _reduce_by_penalised_messages(self, reduced: ReducedProblem, near: Neighbourhood) -> ReducedProblem:
        """``_pass_messages`` with a Lagrange multiplier of memory: at the one with the highest bound, few values are left."""
        run, problem = self.run, reduced.problem
        messages = TrwsMessages(problem, self.check)
        price = best_multiplier(messages, self._incumbent_callback(reduced, near, []))
        if run.best is None or run.is_good_enough:
            return reduced
        limit = problem.memory_limit_bytes
        assert limit is not None
        upper = run.cost_s - problem.fixed_s + price * (limit - problem.fixed_memory_bytes)
        messages.set_multipliers([price] * problem.num_variables)
        for _ in sweeps(messages, lambda: upper):
            self.check()
        return prune(select(reduced, messages.kept(upper)), run.cost_s, price)

    def _eliminate_whole(self, whole: ReducedProblem, program: EliminationProgram | Chain) -> bool:
        """Without a memory limit, one elimination is the answer, unless tables would have to be split."""
        if _exceeds_memory(whole.problem, program):
            return False
        solution = minimise(whole.problem, program, self.check)
        self.info["rounds"] = float(program.rounds)
        self.info["distinct_products"] = float(solution.distinct_products)
        self.info["operations"] = float(solution.operations)
        if math.isinf(solution.bound_s):
            raise all_forbidden_error()
        assignment = whole.lift(solution.assignment)
        self.run.offer(assignment)
        self.raise_relaxation_bound(rounded_down_sum(whole.problem.fixed_s, solution.bound_s))
        return True

    def _incumbent_callback(
        self, reduced: ReducedProblem, near: Neighbourhood, met: list[tuple[int, ...]], descends: bool = True
    ) -> IncumbentCallback:
        """Callback that takes the assignments and bounds of relaxations."""
        run = self.run

        def meet(assignment: tuple[int, ...], bound_s: float, price_s_per_byte: float) -> tuple[int, ...] | None:
            self.raise_relaxation_bound(bound_s, price_s_per_byte)
            if bound_s < math.inf:
                met.append(assignment)
                lifted = reduced.lift(assignment)
                run.offer(lifted)
                if not run.is_good_enough and descends:
                    descend(near, list(lifted), run)
            if run.is_good_enough and not run.is_proved:
                raise _Stop
            return None if run.best is None else reduced.lower(run.best)

        return meet

    def _relax(self, reduced: ReducedProblem, near: Neighbourhood) -> float:
        """Raise the bound by the relaxation, offer the assignments found, and return the best Lagrange multiplier of memory."""
        run, problem = self.run, reduced.problem
        program = plan_problem(problem)
        if _exceeds_memory(problem, program):
            if not self.splits:
                raise _TablesTooLarge(reduced)
            program = plan_problem(problem, SPLIT_TABLE_ENTRIES)
        met: list[tuple[int, ...]] = []
        meet = self._incumbent_callback(
            reduced, near, met, problem.memory_limit_bytes is not None or not program.is_exact
        )
        relax = by_elimination(problem, program, self.check)
        dual = solve_dual(problem, relax, meet)
        self.info["rounds"] = float(program.rounds)
        self.info["distinct_products"] = float(dual.distinct_products)
        self.info["operations"] = float(dual.operations)
        self.info["duals"] = float(dual.evaluations)
        self.info["price_s_per_byte"] = dual.price_s_per_byte
        if math.isinf(dual.bound_s):
            raise all_forbidden_error()
        if not run.is_proved:
            around_limit = met[-NUM_SPLICED:]
            search_mixed_multipliers(problem, relax, dual.price_s_per_byte, meet)
            for before, behind in itertools.permutations(around_limit, 2):
                self.check()
                spliced = splice(problem, before, behind)
                if spliced is not None:
                    meet(spliced, -math.inf, 0.0)
        return dual.price_s_per_byte

    def _require_feasible(self, whole: ReducedProblem) -> None:
        """Offer the feasible assignment of least memory, or prove that there is none."""
        least = least_memory(whole.problem, self.check)
        if math.isinf(least.bound_s):
            raise all_forbidden_error()
        limit, needed = whole.problem.memory_limit_bytes, least.bound_s + whole.problem.fixed_memory_bytes
        if limit is not None and needed > limit:
            raise InfeasibleError("memory_limit_bytes", limit, needed, "no assignment fits (proved)")
        self.run.offer(least.assignment)

    def _close_gap(self, reduced: ReducedProblem) -> None:
        """Close the gap over the values left, which hold every assignment as good as the incumbent."""
        # Importing CP-SAT takes longer than most searches, and few need it.
        from autosbp.search.solvers.cpsat import MAX_ENTRIES, SatLimits, close_gap, num_entries

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
                self.raise_closing_bound(best.cost_s, ENUMERATION)
        elif num_entries(problem) <= MAX_ENTRIES:
            hint = None if run.best is None else reduced.lower(run.best)
            work = SAT_WORK_PER_S * run.options.time_limit_s * run.options.closing
            closed = close_gap(
                problem, run.cost_s, hint, SatLimits(run.options.seed, run.remaining_s, work, run.should_stop)
            )
            if closed is not None:
                self.raise_closing_bound(closed.bound_s, CP_SAT)
                if closed.assignment is not None:
                    run.offer(reduced.lift(closed.assignment))


def _is_hard(problem: SearchProblem, program: EliminationProgram | Chain, most: float | None = None) -> bool:
    """Whether messages are faster than an elimination."""
    if _exceeds_memory(problem, program):
        return True
    return effort_of(problem, program).additions > (MAX_FAST_ADDITIONS if most is None else most)


def _exceeds_memory(problem: SearchProblem, program: EliminationProgram | Chain) -> bool:
    """Whether an elimination would have to split a table, or keep more tables than memory allows."""
    return not program.is_exact or effort_of(problem, program).entries > MAX_KEPT_ENTRIES


def _as_tuples(reduced: ReducedProblem) -> tuple[tuple[int, ...], ...]:
    """The values left of each variable; equal ones are one object."""
    known: dict[bytes, tuple[int, ...]] = {}
    for values in reduced.values:
        if values.tobytes() not in known:
            known[values.tobytes()] = tuple(int(value) for value in values)
    return tuple(known[values.tobytes()] for values in reduced.values)
