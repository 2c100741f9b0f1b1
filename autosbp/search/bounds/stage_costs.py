"""Least stage costs of a folded model's parts at any Lagrange multiplier of memory.

The parts are one repeated block, the ops before the blocks, and the ops after them. Each part is a small problem of its
own, free to choose its input and output layouts and the sharding of every parameter. A stage that holds the part pays
at least its optimum. Seconds are those of all microbatches of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autosbp.search._base import Edge, SearchProblem
from autosbp.search.bounds.stage_subproblem_values import (
    MemoryMultipliers,
    PenalisedSubproblem,
    ValueColumns,
    undominated_subproblem,
    without_dominated,
)
from autosbp.search.problem.builder import BuiltProblem
from autosbp.search.solvers.elimination import Solution, effort_of, minimise, plan_problem
from autosbp.search.solvers.incremental_elimination import IncrementalElimination
from autosbp.search.solvers.repeated_chain import Chain

Floats = NDArray[np.float64]
MEMORY_ONLY_MULTIPLIER = 1e6
"""Lagrange multiplier of memory in multiples of a fast layout's seconds, at which only bytes count."""
MANY_ADDITIONS, MAX_ADDITIONS = 1e6, 3e8
"""Additions of an elimination: limits for using it directly, and for using it at all.

Above the first, removing dominated values beforehand pays. Above the second, an elimination per multiplier takes too
long."""


@dataclass(frozen=True, slots=True)
class PenalisedCost:
    """Least penalised seconds of a part, with the unpenalised costs of that assignment.

    ``seconds`` excludes memory. Bytes: ``stays`` of permanent state, ``gradients``, and ``kept`` (saved per
    microbatch)."""

    least_s: float
    seconds: float
    stays: float
    gradients: float
    kept: float


class StageSubproblem:
    """The variables ``inner`` of a problem that was built with its ``detail``; a step has ``count`` microbatches."""

    def __init__(self, built: BuiltProblem, inner: Sequence[int], count: int) -> None:
        assert built.detail is not None
        new = {variable: at for at, variable in enumerate(inner)}
        whole, parts = built.problem, [built.detail.parts[v] for v in inner]
        self._built, self._inner, self._parts = built, inner, parts
        self.problem = SearchProblem(
            tuple(whole.names[v] for v in inner),
            tuple(part.seconds for part in parts),
            tuple(part.memory for part in parts),
            tuple(
                Edge(new[edge.u], new[edge.v], edge.table) for edge in whole.edges if edge.u in new and edge.v in new
            ),
        )
        # Parameter layouts and their copies cost once a step.
        stored = {variable for variable, _ in built.parameter_variables.values()}
        near = {end for edge in whole.edges if {edge.u, edge.v} & stored for end in (edge.u, edge.v)}
        copies = {new[v] for v in near | stored if v in new and v >= len(built.clusters)}
        self._per_microbatch_edges = tuple(edge for edge in self.problem.edges if not {edge.u, edge.v} & copies)
        work = effort_of(self.problem, plan_problem(self.problem)).additions
        self.is_large, self.is_huge = work > MANY_ADDITIONS, work > MAX_ADDITIONS
        self.count = count
        self.forward_s = sum(part.forward_s for part in parts)
        self.backward_s = sum(part.backward_s for part in parts)
        self.backward_without_wgrad_s = self.backward_s - sum(part.deferred_wgrad_s for part in parts)
        self.least_kept = sum(float(part.kept.min()) for part in parts)
        self._at: dict[MemoryMultipliers, PenalisedCost] = {}
        self._known: dict[bool, list[PenalisedCost]] = {False: [], True: []}

    @cached_property
    def _columns(self) -> list[ValueColumns]:
        columns = {id(part): ValueColumns.of(part) for part in self._parts}
        return [columns[id(part)] for part in self._parts]

    @cached_property
    def _replacement_costs(self) -> list[Floats | None]:
        """[i, j] seconds that value j pays to replace value i, with neighbours unchanged; None for copies."""
        detail, count = self._built.detail, len(self._built.clusters)
        assert detail is not None
        return [
            sum((port.replacement_s() for port in detail.ports.get(v, ())), np.zeros((len(part.seconds),) * 2))
            if v < count else None
            for v, part in zip(self._inner, self._parts, strict=True)
        ]  # fmt: skip

    @cached_property
    def _undominated_subproblem(self) -> PenalisedSubproblem:
        """The values that can be optimal at some multiplier; all of a small part, as filtering takes longer than it saves."""
        return undominated_subproblem(self.problem, self._columns, self._replacement_costs if self.is_large else [])

    @cached_property
    def least_microbatch_s(self) -> float:
        """Least seconds of one microbatch, without once-a-step work."""
        problem = replace(
            self.problem, unary_s=tuple(each.passes for each in self._columns), edges=self._per_microbatch_edges
        )
        return (
            self._minimise_undominated(problem, self._replacement_costs if self.is_large else []).bound_s / self.count
        )

    def known(self, *, once: bool) -> list[PenalisedCost]:
        """Costs at the multipliers so far, with or without once-a-step work; at first those of a fast and a small layout."""
        found = self._known[once]
        if not found:
            quick = self.at(MemoryMultipliers(0.0, 0.0, 0.0, once))
            price = MEMORY_ONLY_MULTIPLIER * quick.seconds / max(quick.stays + quick.kept, 1.0)
            self.at(MemoryMultipliers(price, price, price, once))
        return found

    def at(self, prices: MemoryMultipliers) -> PenalisedCost:
        """Least cost over all layouts at these multipliers."""
        if prices not in self._at:
            self._at[prices] = self._priced(prices)
            self._known[prices.once].append(self._at[prices])
        return self._at[prices]

    def _priced(self, prices: MemoryMultipliers) -> PenalisedCost:
        known: dict[int, tuple[Floats, NDArray[np.intp]]] = {}
        chosen = []
        for each in self._undominated_subproblem.columns:
            if id(each) not in known:
                known[id(each)] = each.priced(prices)
            chosen.append(known[id(each)])
        solution = self._solve(tuple(priced for priced, _ in chosen))
        stays = gradients = kept = 0.0
        for each, (_, ways), value in zip(
            self._undominated_subproblem.columns, chosen, solution.assignment, strict=True
        ):
            way = int(ways[value])
            stays += float(each.stays[way, value])
            gradients += float(each.gradients[way, value])
            kept += float(each.kept[value])
        paid = prices.stays * stays + prices.gradients * gradients + prices.kept * kept
        return PenalisedCost(solution.bound_s, solution.bound_s - paid, stays, gradients, kept)

    @cached_property
    def _incremental_elimination(self) -> IncrementalElimination | None:
        """Reusable elimination, for parts that are quick to eliminate at every multiplier."""
        found = self._undominated_subproblem
        if found.work > MANY_ADDITIONS or isinstance(found.program, Chain):
            return None
        return IncrementalElimination(found.problem, found.program, list(map(id, found.columns)))

    def _solve(self, priced_s: tuple[Floats, ...]) -> Solution:
        if self._incremental_elimination is not None:
            return self._incremental_elimination.minimise(priced_s)
        problem = replace(self._undominated_subproblem.problem, unary_s=priced_s)
        if self._undominated_subproblem.work > MANY_ADDITIONS:
            return self._minimise_undominated(problem, self._undominated_subproblem.switches)
        return minimise(problem, self._undominated_subproblem.program, _never_interrupt)

    @staticmethod
    def _minimise_undominated(problem: SearchProblem, switches: Sequence[Floats | None]) -> Solution:
        """Minimum of a problem, without dominated values if ``switches`` are given."""
        if not switches:
            return minimise(problem, plan_problem(problem), _never_interrupt)
        smaller, left = without_dominated(problem, switches)
        solution = minimise(smaller, plan_problem(smaller), _never_interrupt)
        lifted = tuple(int(kept[value]) for kept, value in zip(left, solution.assignment, strict=True))
        return replace(solution, assignment=lifted)


def _never_interrupt() -> None:
    """A check that never interrupts: these eliminations are short."""
