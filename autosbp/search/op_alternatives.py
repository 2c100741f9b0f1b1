"""Best strategies of a plan's search space with one op fixed to a signature.

The search problems are lower bounds on the step time, linear in multipliers of overlapped communication
(``problem.cost_weights``). One elimination of such a problem with the op's variable last gives the least cost of each
of its values (min-marginals). The highest of these bounds, over several multipliers, bounds all strategies with the
value. The assignments that attain them give strategies whose step is simulated. So do the assignments of a problem in
which all communication counts in full, which is no bound. If none of these strategies fits in memory, the problem is
searched under the memory limit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autosbp.costmodel.calibration import Calibration
from autosbp.errors import InfeasibleError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Plan, Signature
from autosbp.search._base import Costs, SearchProblem, SearchResult, cost_of, memory_of
from autosbp.search.bounds.work_bound import work_bound_s
from autosbp.search.branch_and_bound.candidate import INFINITE, Candidate, fastest
from autosbp.search.branch_and_bound.context import SearchContext, SearchMode
from autosbp.search.branch_and_bound.overlap_multipliers import CostPlanes
from autosbp.search.branch_and_bound.plan_subproblem import plan_problems, plan_subproblem
from autosbp.search.branch_and_bound.root_relaxations import COUNT_ALL_COMMUNICATION, MIN_BOUND_GAIN, PROPOSALS
from autosbp.search.branch_and_bound.strategy_coster import StrategyCoster
from autosbp.search.branch_and_bound.subproblem_solver import TIGHTENINGS, SubproblemSolver
from autosbp.search.plan_options import PlanOptions
from autosbp.search.problem.builder import BuiltProblem
from autosbp.search.problem.cost_weights import GATHER_PER_USE
from autosbp.search.problem.dominance import Bools, DominanceFilter
from autosbp.search.problem.expand_repeats import ExpandedProblem
from autosbp.search.solvers.elimination import MinMarginals, min_marginals
from autosbp.search.solvers.reduced_cost_fixing import ReducedProblem, canonical
from autosbp.search.stages.layout_problems import Subproblem, SubproblemKey

MAX_MULTIPLIERS = 4
"""Maximum number of multipliers tried to raise the bound."""


@dataclass(frozen=True)
class Relaxation:
    """A subproblem at some multipliers.

    ``whole`` has every layout. ``kept`` is, per variable, the mask of values that no other value dominates; None if
    all.
    """

    whole: Subproblem
    kept: Sequence[Bools | None]


@dataclass(frozen=True)
class FixedOpProblem:
    """A relaxation with all values of one variable, and the least cost of each of them."""

    whole: Subproblem
    reduced: ReducedProblem
    marginals: MinMarginals

    def quickest(self, values: Sequence[int]) -> tuple[int, ...]:
        """The cheapest assignment of ``whole`` with one of these values."""
        least = min(values, key=lambda each: self.marginals.least_s[each])
        return self.reduced.lift(self.marginals.assignment(least))

    def only(self, variable: int, values: Sequence[int]) -> SearchProblem:
        """The reduced problem with the variable restricted to these values."""
        problem = self.reduced.problem
        others = np.ones(len(problem.unary_s[variable]), dtype=bool)
        others[values] = False
        unary = list(problem.unary_s)
        unary[variable] = np.where(others, np.inf, unary[variable])
        return replace(problem, unary_s=tuple(unary))


@dataclass(frozen=True)
class FixedOp:
    """One op of a subproblem, at several multipliers.

    ``values[signature]`` are the values of its variable with that signature, cheapest signatures first. ``least_s`` is
    a lower bound on the cost of strategies with each value.
    """

    op: str
    variable: int
    problems: Sequence[FixedOpProblem]
    least_s: Costs
    values: dict[str, list[int]]

    @property
    def bounding(self) -> list[FixedOpProblem]:
        """The problems that are lower bounds."""
        return _bounding(self.problems)


class Alternatives:
    """Solves the plan's subproblem with one op fixed to each signature.

    ``own`` is the plan's strategy with its costs.
    """

    def __init__(self, graph: LogicalGraph, plan: Plan, options: PlanOptions, calibration: Calibration | None) -> None:
        problems = plan_problems(graph, plan, options, calibration)
        limit = int(plan.document["memory_limit_bytes"])
        self.context = SearchContext(problems, options, limit, time.monotonic() + options.time_limit_s)
        self.problems, self.coster = problems, StrategyCoster(self.context)
        self.solver = SubproblemSolver(self.context, self.coster)
        space, strategy = plan_subproblem(problems, plan, options), plan.strategy
        self.context.kind = SearchMode("exact")
        self.problems_are_lower_bounds = space.storage != GATHER_PER_USE and problems.pins.is_storage_unsharded
        self.least_work_s = work_bound_s(
            problems.bound, [strategy.micro_batch], strategy.global_batch, plan.cluster, calibration,
            optimizer=strategy.optimizer, offload=strategy.offload,
        )  # fmt: skip
        self.relaxations = self._at_multipliers(space)
        graph, boxing = problems.bound(strategy.micro_batch), problems.boxing(strategy.mesh)
        self.own = Candidate(strategy, self.coster.costs(graph, strategy, boxing))

    def _at_multipliers(self, space: SubproblemKey) -> list[Relaxation]:
        """Relaxations at the default multipliers, at some that raise the bound, and at some that give other strategies.

        The second kind exists only if the problems are lower bounds.
        """
        every, bound = [space.overlap_weights], -INFINITE
        planes = CostPlanes(self.problems, space.view)
        while self.problems_are_lower_bounds and len(every) < MAX_MULTIPLIERS:
            layouts = self.problems.build(replace(space, overlap_weights=every[-1]), None)
            result = self.solver.search(layouts.problem)
            strategy = self.problems.strategy(layouts, result.assignment)
            planes.add(layouts.key, strategy, result.cost_s)
            bound = max(bound, result.lower_bound_s)
            exposure, height = planes.highest()
            if height <= bound * (1 + MIN_BOUND_GAIN) or exposure in every:
                break
            every.append(exposure)
        every += [
            each
            for each in (COUNT_ALL_COMMUNICATION, *PROPOSALS)
            if (self.problems_are_lower_bounds or each.whole) and each not in every
        ]
        return [self._relaxation(replace(space, overlap_weights=each)) for each in every]

    def _relaxation(self, space: SubproblemKey) -> Relaxation:
        whole = self.problems.build(space, None, dominated=True)
        return Relaxation(whole, _kept_masks(whole, self.problems.build(space, self.context.limit)))

    def hold(self, op: str) -> FixedOp:
        """The op's values with a lower bound on the cost of each."""
        whole = self.relaxations[0].whole
        variable, cluster, at = _locate_op(whole, op)
        problems = [_fix_variable(each, variable) for each in self.relaxations]
        least_s = np.max([each.marginals.least_s for each in _bounding(problems)], axis=0)
        values: dict[str, list[int]] = {}
        for value in np.argsort(least_s, kind="stable"):
            if math.isfinite(least_s[value]):
                values.setdefault(str(_signature(whole, cluster, at, int(value))), []).append(int(value))
        return FixedOp(op, variable, problems, least_s, values)

    def best_of(self, held: FixedOp, signature: str) -> tuple[Candidate, float]:
        """The best strategy found with the signature, and a lower bound for it.

        Raises:
            InfeasibleError: no strategy with the signature fits in memory.
        """
        values = held.values[signature]
        is_own = signature == str(self.own.strategy.signatures[held.op]) and self.coster.has_room(self.own)
        best, all_fit = self.own if is_own else None, True
        for estimate, whole, assignment in self._optima(held, values):
            if best is not None and estimate >= best.costs.step_time_s:
                break
            memory = memory_of(whole.problem, assignment)
            found = self.coster.candidates(whole, _result(assignment, memory)) if memory <= self.context.limit else ()
            fitting = self.coster.fastest_fitting(found)
            all_fit &= fitting is not None
            best = fastest((best, fitting))
        bound = self._share_of_step * float(held.least_s[values[0]])
        if not all_fit:
            try:
                fitting, limited = self._solve_within_limit(held, values)
                best, bound = fastest((best, fitting)), max(bound, self._share_of_step * limited)
            except InfeasibleError:
                if best is None:
                    raise
        assert best is not None
        return best, bound if self.problems_are_lower_bounds else self.least_work_s

    @property
    def _share_of_step(self) -> float:
        """Fraction of a problem's cost that bounds the step time from below."""
        space = self.relaxations[0].whole.key
        return self.solver.busy_fraction(space) * self.coster.once(space)

    def _optima(self, held: FixedOp, values: Sequence[int]) -> list[tuple[float, Subproblem, tuple[int, ...]]]:
        """Per problem, the cheapest assignment with one of these values and a bound on its step; lowest bound first."""
        every, found = {each.quickest(values): each.whole for each in reversed(held.problems)}, []
        for assignment, whole in every.items():
            cost_s = max(cost_of(each.whole.problem, assignment) for each in held.bounding)
            found.append((self._share_of_step * cost_s, whole, assignment))
        return sorted(found, key=lambda each: (each[0], each[2]))

    def _solve_within_limit(self, held: FixedOp, values: Sequence[int]) -> tuple[Candidate, float]:
        """``SubproblemSolver.limited`` for the problem with the highest bound; the first search gives the bound."""
        of = max(held.bounding, key=lambda each: float(each.marginals.least_s[values].min()))
        problem, limit, needed, bound = of.only(held.variable, values), self.context.limit, 0, -INFINITE
        for _ in range(TIGHTENINGS):
            try:
                result = self.solver.search(replace(problem, memory_limit_bytes=limit))
            except InfeasibleError:
                if limit == self.context.limit:
                    raise
                break
            if limit == self.context.limit:
                bound = result.lower_bound_s
            lifted = _result(of.reduced.lift(result.assignment), result.memory_bytes)
            candidates = list(self.coster.candidates(of.whole, lifted))
            fitting = self.coster.fastest_fitting(candidates)
            if fitting is not None:
                return fitting, bound
            if not candidates:
                break
            needed = min(candidate.memory_bytes for candidate in candidates)
            limit = self.coster.tightened_limit(limit, result, candidates)
        detail = "the strategies found exceed it at peak"
        raise InfeasibleError("memory_limit_bytes", self.context.limit, needed, detail)


def _bounding(problems: Sequence[FixedOpProblem]) -> list[FixedOpProblem]:
    return [each for each in problems if not each.whole.key.overlap_weights.whole]


def _result(assignment: tuple[int, ...], memory_bytes: int) -> SearchResult:
    return SearchResult(assignment, 0.0, memory_bytes, -INFINITE, 0.0, 0, (), 0.0, "exact")


def _fix_variable(relaxation: Relaxation, variable: int) -> FixedOpProblem:
    whole = relaxation.whole
    masks = [None if place == variable else mask for place, mask in enumerate(relaxation.kept)]
    problem = canonical(DominanceFilter().reduce(whole.problem, masks)).problem
    values = [
        np.arange(len(costs)) if mask is None else np.flatnonzero(mask)
        for mask, costs in zip(masks, whole.problem.unary_s, strict=True)
    ]
    marginals = min_marginals(problem, variable, lambda: None)
    return FixedOpProblem(whole, ReducedProblem(problem, tuple(values)), marginals)


def _kept_masks(whole: Subproblem, smaller: Subproblem) -> list[Bools | None]:
    """Per variable of ``whole``, the mask of values that ``smaller`` has too; None if it has all.

    Equal masks are the same array.
    """
    distinct: dict[bytes, Bools] = {}
    folded: list[Bools | None] = [None] * len(whole.built.anchors)
    for at, (all_of, some) in enumerate(zip(whole.built.domains, smaller.built.domains, strict=True)):
        rows = {row.tobytes() for row in some.rows}
        mask = np.array([row.tobytes() in rows for row in all_of.rows])
        folded[at] = distinct.setdefault(mask.tobytes(), mask)
    if isinstance(whole.found, BuiltProblem):
        return folded
    masks: list[Bools | None] = [None] * whole.problem.num_variables
    for variable, copies in enumerate(whole.found.copies):
        for place, _ in copies:
            masks[place] = folded[variable]
    return masks


def _locate_op(layouts: Subproblem, op: str) -> tuple[int, int, int]:
    """The variable of an op, its cluster, and its index among the cluster's ops."""
    found = layouts.found
    for at, cluster in enumerate(layouts.built.clusters):
        copies = found.copies[at] if isinstance(found, ExpandedProblem) else [(at, 0)]
        for variable, block in copies:
            for place, node in enumerate(cluster.nodes):
                name = found.names(at, block)(node.name) if isinstance(found, ExpandedProblem) else node.name
                if name == op:
                    return variable, at, place
    raise AssertionError(op)


def _signature(layouts: Subproblem, cluster: int, place: int, value: int) -> Signature:
    options = layouts.built.clusters[cluster].options
    chosen = [options[option][place] for option in layouts.built.domains[cluster].rows[value]]
    num_ins, num_outs = len(options[0][place].ins), len(options[0][place].outs)
    return Signature(
        tuple(tuple(option.ins[position] for option in chosen) for position in range(num_ins)),
        tuple(tuple(option.outs[index] for option in chosen) for index in range(num_outs)),
    )
