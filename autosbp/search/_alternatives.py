"""The best strategies of a plan's space in which one op is held to a signature.

One elimination that leaves the op's variable to the last gives the least cost of a step for each of its values
(min-marginals). What does not fit in memory like that is searched under the limit.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from autosbp.costmodel.calibration import Calibration
from autosbp.errors import InfeasibleError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Plan, Signature
from autosbp.search._base import SearchProblem, SearchResult, memory_of
from autosbp.search.plan_options import PlanOptions
from autosbp.search.problem.build import BuiltProblem
from autosbp.search.problem.dominance import Bools, Sieve
from autosbp.search.problem.unfold import UnfoldedProblem
from autosbp.search.searchers.elimination import MinMarginals, min_marginals
from autosbp.search.searchers.pruning import Reduced, canonical
from autosbp.search.space.candidate import Candidate
from autosbp.search.space.costing import INFINITE
from autosbp.search.space.plan_space import plan_problems, plan_space
from autosbp.search.space.space_solver import TIGHTENINGS, Kind, SpaceSolver
from autosbp.search.space.tally import Tally
from autosbp.search.stages.layouts import Layouts


@dataclass(frozen=True)
class HeldOp:
    """One op of a space: ``values[signature]`` are the values of its variable with that signature, the signatures that cost
    least first."""

    variable: int
    reduced: Reduced
    marginals: MinMarginals
    values: dict[str, list[int]]


class Alternatives(SpaceSolver):
    """Solves the plan's space with one op held to one signature after another."""

    def __init__(self, graph: LogicalGraph, plan: Plan, options: PlanOptions, calibration: Calibration | None) -> None:
        problems = plan_problems(graph, plan, options, calibration)
        limit = int(plan.document["memory_limit_bytes"])
        super().__init__(problems, options, limit, time.monotonic() + options.time_limit_s, None)
        space = plan_space(problems, plan, options)
        self.whole = problems.build(space, None, dominated=True)
        self.kept = _kept(self.whole, problems.build(space, limit))
        self.tally, self.kind = Tally(), Kind("exact")

    def hold(self, op: str) -> HeldOp:
        """The op with the least cost of each of its values."""
        variable, cluster, at = _place(self.whole, op)
        masks = [None if place == variable else mask for place, mask in enumerate(self.kept)]
        problem = canonical(Sieve().smaller(self.whole.problem, masks)).problem
        values = [
            np.arange(len(costs)) if mask is None else np.flatnonzero(mask)
            for mask, costs in zip(masks, self.whole.problem.unary_s, strict=True)
        ]
        marginals = min_marginals(problem, variable, lambda: None)
        signatures: dict[str, list[int]] = {}
        for value in np.argsort(marginals.least_s, kind="stable"):
            if math.isfinite(marginals.least_s[value]):
                signature = str(_signature(self.whole, cluster, at, int(value)))
                signatures.setdefault(signature, []).append(int(value))
        return HeldOp(variable, Reduced(problem, tuple(values)), marginals, signatures)

    def best_of(self, held: HeldOp, signature: str) -> tuple[Candidate, float]:
        """The best strategy with the signature, and what none with it goes below; raises ``InfeasibleError``."""
        values = held.values[signature]
        working = self._working(self.whole.space) * self._once(self.whole.space)
        bound = working * float(held.marginals.least_s[values[0]])
        quickest = held.reduced.lift(held.marginals.assignments[values[0]])
        memory = memory_of(self.whole.problem, quickest)
        if memory <= self.limit:
            fitting = self._fits(self._candidates(self.whole, self._found(quickest, memory)))
            if fitting is not None:
                return fitting, bound
        problem = held.reduced.problem
        others = np.ones(len(problem.unary_s[held.variable]), dtype=bool)
        others[values] = False
        unary = list(problem.unary_s)
        unary[held.variable] = np.where(others, np.inf, unary[held.variable])
        fitting, limited = self._within(replace(problem, unary_s=tuple(unary)), held.reduced)
        return fitting, max(bound, working * limited)

    def _within(self, problem: SearchProblem, reduced: Reduced) -> tuple[Candidate, float]:
        """As ``SpaceSolver._limited``, of a problem that is built already; with a bound from the first search."""
        limit, needed, bound = self.limit, 0, -INFINITE
        for _ in range(TIGHTENINGS):
            try:
                result = self._search(replace(problem, memory_limit_bytes=limit), self.kind, self.tally, INFINITE)
            except InfeasibleError:
                if limit == self.limit:
                    raise
                break
            if limit == self.limit:
                bound = result.lower_bound_s
            lifted = self._found(reduced.lift(result.assignment), result.memory_bytes)
            candidates = list(self._candidates(self.whole, lifted))
            fitting = self._fits(candidates)
            if fitting is not None:
                return fitting, bound
            if not candidates:
                break
            needed = min(candidate.memory_bytes for candidate in candidates)
            limit = self._tighter(limit, result, candidates)
        detail = "what search found takes more at its fullest moment"
        raise InfeasibleError("memory_limit_bytes", self.limit, needed, detail)

    def _found(self, assignment: tuple[int, ...], memory_bytes: int) -> SearchResult:
        return SearchResult(assignment, 0.0, memory_bytes, -INFINITE, 0.0, 0, (), 0.0, "exact")


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
