"""The best strategies of a plan's space in which one op is held to a signature.

Problems of a search are linear bounds of the step, at some multipliers of what moves beside passes (``problem.weights``). One
elimination of such a problem that leaves the op's variable to the last gives the least cost of each of its values
(min-marginals). At several multipliers, the highest of these bounds all strategies with the value, and the assignments that
have them lead to strategies, of which the step is simulated; so do those of the problem in which all messages count in full,
which is no bound. What does not fit in memory like that is searched under the limit.
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
from autosbp.plan import Plan, Signature
from autosbp.search._base import Costs, SearchProblem, SearchResult, cost_of, memory_of
from autosbp.search.bounds.work import work_bound_s
from autosbp.search.plan_options import PlanOptions
from autosbp.search.problem.build import BuiltProblem
from autosbp.search.problem.dominance import Bools, Sieve
from autosbp.search.problem.unfold import UnfoldedProblem
from autosbp.search.problem.weights import USE
from autosbp.search.searchers.elimination import MinMarginals, min_marginals
from autosbp.search.searchers.pruning import Reduced, canonical
from autosbp.search.space.candidate import Candidate
from autosbp.search.space.costing import INFINITE
from autosbp.search.space.opening import PROPOSALS, RISES, WHOLE, Opening
from autosbp.search.space.plan_space import plan_problems, plan_space
from autosbp.search.space.space_solver import TIGHTENINGS, Kind
from autosbp.search.space.tally import Tally
from autosbp.search.stages.layouts import Layouts, Space

LOOKS = 4
"""Multipliers at the most, to raise the bound."""


@dataclass(frozen=True)
class Relaxation:
    """A space at some multipliers: ``whole`` has every layout; ``kept`` are those values of each variable that no other
    dominates, None where all are."""

    whole: Layouts
    kept: Sequence[Bools | None]


@dataclass(frozen=True)
class HeldProblem:
    """A relaxation with all values of one variable, and what each of these costs at the least."""

    whole: Layouts
    reduced: Reduced
    marginals: MinMarginals

    def quickest(self, values: Sequence[int]) -> tuple[int, ...]:
        """The assignment of ``whole`` that costs least with one of these values."""
        least = min(values, key=lambda each: self.marginals.least_s[each])
        return self.reduced.lift(self.marginals.assignment(least))

    def only(self, variable: int, values: Sequence[int]) -> SearchProblem:
        """The reduced problem in which the variable has one of these values."""
        problem = self.reduced.problem
        others = np.ones(len(problem.unary_s[variable]), dtype=bool)
        others[values] = False
        unary = list(problem.unary_s)
        unary[variable] = np.where(others, np.inf, unary[variable])
        return replace(problem, unary_s=tuple(unary))


@dataclass(frozen=True)
class HeldOp:
    """One op of a space, at several multipliers: ``values[signature]`` are the values of its variable with that signature, the
    signatures that cost least first; ``least_s`` is what problems say that no strategy with a value costs less than."""

    op: str
    variable: int
    problems: Sequence[HeldProblem]
    least_s: Costs
    values: dict[str, list[int]]

    @property
    def bounding(self) -> list[HeldProblem]:
        """Those that charge no more than steps take."""
        return _bounding(self.problems)


class Alternatives(Opening):
    """Solves the plan's space with one op held to one signature after another. ``own`` is the plan's strategy, costed."""

    def __init__(self, graph: LogicalGraph, plan: Plan, options: PlanOptions, calibration: Calibration | None) -> None:
        problems = plan_problems(graph, plan, options, calibration)
        limit = int(plan.document["memory_limit_bytes"])
        super().__init__(problems, options, limit, time.monotonic() + options.time_limit_s, None)
        space, strategy = plan_space(problems, plan, options), plan.strategy
        self.tally, self.kind = Tally(), Kind("exact")
        self.is_charged = space.storage != USE and problems.pins.are_stored_as_used
        self.least_work_s = work_bound_s(
            problems.bound, [strategy.micro_batch], strategy.global_batch, plan.cluster, calibration,
            optimizer=strategy.optimizer, offload=strategy.offload,
        )  # fmt: skip
        self.relaxations = self._at_multipliers(space)
        graph, boxing = problems.bound(strategy.micro_batch), problems.boxing(strategy.mesh)
        self.own = Candidate(strategy, self._costs(graph, strategy, boxing))

    def _at_multipliers(self, space: Space) -> list[Relaxation]:
        """At none, at some that raise the bound, where there is one, and at some that may lead to other strategies."""
        every, bound = [space.exposure], -INFINITE
        planes = self._planes(space.structure)
        while self.is_charged and len(every) < LOOKS:
            layouts = self.problems.build(replace(space, exposure=every[-1]), None)
            result = self._solve(layouts, self.kind, self.tally, INFINITE)
            strategy = self.problems.strategy(layouts, result.assignment)
            planes.known.append(self._plane(layouts.space, strategy, result.cost_s))
            bound = max(bound, result.lower_bound_s)
            exposure, height = planes.highest()
            if height <= bound * (1 + RISES) or exposure in every:
                break
            every.append(exposure)
        every += [each for each in (WHOLE, *PROPOSALS) if (self.is_charged or each.whole) and each not in every]
        return [self._relaxation(replace(space, exposure=each)) for each in every]

    def _relaxation(self, space: Space) -> Relaxation:
        whole = self.problems.build(space, None, dominated=True)
        return Relaxation(whole, _kept(whole, self.problems.build(space, self.limit)))

    def hold(self, op: str) -> HeldOp:
        """The op with the least cost of each of its values."""
        whole = self.relaxations[0].whole
        variable, cluster, at = _place(whole, op)
        problems = [_held(each, variable) for each in self.relaxations]
        least_s = np.max([each.marginals.least_s for each in _bounding(problems)], axis=0)
        values: dict[str, list[int]] = {}
        for value in np.argsort(least_s, kind="stable"):
            if math.isfinite(least_s[value]):
                values.setdefault(str(_signature(whole, cluster, at, int(value))), []).append(int(value))
        return HeldOp(op, variable, problems, least_s, values)

    def best_of(self, held: HeldOp, signature: str) -> tuple[Candidate, float]:
        """The best strategy met with the signature, and what none with it goes below; raises ``InfeasibleError``."""
        values = held.values[signature]
        is_own = signature == str(self.own.strategy.signatures[held.op]) and self.has_room(self.own)
        best, all_fit = self.own if is_own else None, True
        for estimate, whole, assignment in self._optima(held, values):
            if best is not None and estimate >= best.costs.step_time_s:
                break
            memory = memory_of(whole.problem, assignment)
            found = self._candidates(whole, _found(assignment, memory)) if memory <= self.limit else ()
            fitting = self._fits(found)
            all_fit &= fitting is not None
            best = _quicker(best, fitting)
        bound = self._share_of_step * float(held.least_s[values[0]])
        if not all_fit:
            try:
                fitting, limited = self._within(held, values)
                best, bound = _quicker(best, fitting), max(bound, self._share_of_step * limited)
            except InfeasibleError:
                if best is None:
                    raise
        assert best is not None
        return best, bound if self.is_charged else self.least_work_s

    @property
    def _share_of_step(self) -> float:
        """The part of a problem's cost that no step takes less than."""
        space = self.relaxations[0].whole.space
        return self._working(space) * self._once(space)

    def _optima(self, held: HeldOp, values: Sequence[int]) -> list[tuple[float, Layouts, tuple[int, ...]]]:
        """The assignment of each problem that costs least with one of these values, with what its strategy takes at the
        least; the least of these first."""
        every, found = {each.quickest(values): each.whole for each in reversed(held.problems)}, []
        for assignment, whole in every.items():
            cost_s = max(cost_of(each.whole.problem, assignment) for each in held.bounding)
            found.append((self._share_of_step * cost_s, whole, assignment))
        return sorted(found, key=lambda each: (each[0], each[2]))

    def _within(self, held: HeldOp, values: Sequence[int]) -> tuple[Candidate, float]:
        """As ``SpaceSolver._limited``, of the held problem with the highest bound; with a bound from the first search."""
        of = max(held.bounding, key=lambda each: float(each.marginals.least_s[values].min()))
        problem, limit, needed, bound = of.only(held.variable, values), self.limit, 0, -INFINITE
        for _ in range(TIGHTENINGS):
            try:
                result = self._search(replace(problem, memory_limit_bytes=limit), self.kind, self.tally, INFINITE)
            except InfeasibleError:
                if limit == self.limit:
                    raise
                break
            if limit == self.limit:
                bound = result.lower_bound_s
            lifted = _found(of.reduced.lift(result.assignment), result.memory_bytes)
            candidates = list(self._candidates(of.whole, lifted))
            fitting = self._fits(candidates)
            if fitting is not None:
                return fitting, bound
            if not candidates:
                break
            needed = min(candidate.memory_bytes for candidate in candidates)
            limit = self._tighter(limit, result, candidates)
        detail = "what search found takes more at its fullest moment"
        raise InfeasibleError("memory_limit_bytes", self.limit, needed, detail)


def _bounding(problems: Sequence[HeldProblem]) -> list[HeldProblem]:
    return [each for each in problems if not each.whole.space.exposure.whole]


def _quicker(one: Candidate | None, other: Candidate | None) -> Candidate | None:
    found = [each for each in (one, other) if each is not None]
    return min(found, key=lambda each: each.costs.step_time_s, default=None)


def _found(assignment: tuple[int, ...], memory_bytes: int) -> SearchResult:
    return SearchResult(assignment, 0.0, memory_bytes, -INFINITE, 0.0, 0, (), 0.0, "exact")


def _held(relaxation: Relaxation, variable: int) -> HeldProblem:
    whole = relaxation.whole
    masks = [None if place == variable else mask for place, mask in enumerate(relaxation.kept)]
    problem = canonical(Sieve().smaller(whole.problem, masks)).problem
    values = [
        np.arange(len(costs)) if mask is None else np.flatnonzero(mask)
        for mask, costs in zip(masks, whole.problem.unary_s, strict=True)
    ]
    marginals = min_marginals(problem, variable, lambda: None)
    return HeldProblem(whole, Reduced(problem, tuple(values)), marginals)


def _kept(whole: Layouts, smaller: Layouts) -> list[Bools | None]:
    """Of each variable of ``whole``, which values ``smaller`` has, too; None where all. Masks that are equal are one."""
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


def _place(layouts: Layouts, op: str) -> tuple[int, int, int]:
    """The variable of an op, its cluster, and its place among the cluster's ops."""
    found = layouts.found
    for at, cluster in enumerate(layouts.built.clusters):
        copies = found.copies[at] if isinstance(found, UnfoldedProblem) else [(at, 0)]
        for variable, block in copies:
            for place, node in enumerate(cluster.nodes):
                name = found.names(at, block)(node.name) if isinstance(found, UnfoldedProblem) else node.name
                if name == op:
                    return variable, at, place
    raise AssertionError(op)


def _signature(layouts: Layouts, cluster: int, place: int, value: int) -> Signature:
    options = layouts.built.clusters[cluster].options
    chosen = [options[option][place] for option in layouts.built.domains[cluster].rows[value]]
    num_ins, num_outs = len(options[0][place].ins), len(options[0][place].outs)
    return Signature(
        tuple(tuple(option.ins[position] for option in chosen) for position in range(num_ins)),
        tuple(tuple(option.outs[index] for option in chosen) for index in range(num_outs)),
    )
