"""Root relaxations of structures without a pipeline: a bound of each, and its optimum without the memory limit.

The relaxations are independent until an optimum is costed, so two cores share them. The fastest optimum is costed
first, because it usually prunes the others. Its simulated step may exceed its problem's cost, if it exposes more
communication than the problem's multipliers assume. Other multipliers raise the bound and lead to other optima, which
are costed too (``branch_and_bound.overlap_multipliers``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from autosbp.errors import InfeasibleError
from autosbp.search.branch_and_bound.candidate import INFINITE
from autosbp.search.branch_and_bound.clock import OutOfTimeError
from autosbp.search.branch_and_bound.context import UnlimitedStep
from autosbp.search.branch_and_bound.overlap_multipliers import CostPlanes
from autosbp.search.branch_and_bound.subproblem_solver import SubproblemSolver, UnlimitedStrategy
from autosbp.search.stages.layout_problems import OverlapWeights, PipelineStructure, SubproblemKey
from autosbp.utils.serialization import serializable

MAX_MULTIPLIERS, MAX_MULTIPLIERS_OF_OTHERS = 6, 2
"""Number of multipliers tried for the first structure, and for each other.

Mesh views with more axes than the first also contain its strategies. So their bounds are no higher at any multipliers,
and the best multipliers are usually the same.
"""
COUNT_ALL_COMMUNICATION = OverlapWeights(whole=True)
PROPOSALS = (OverlapWeights(0.0, 0.0, 0.0), OverlapWeights(0.5, 0.5), OverlapWeights(1.0, 1.0))
"""Multipliers tried once others raise the bound no more: ``COUNT_ALL_COMMUNICATION`` for all structures, these for the
first."""
ONLY_OVERLAPPED_COMMUNICATION = OverlapWeights(1.0, 1.0)
"""Multipliers that count all overlapped communication, and nothing of the pass that it overlaps with."""
MIN_BOUND_GAIN = 1e-3
"""Least relative gain of a bound that is worth another try."""
NEAR_BOUND = 1.05
"""Step time relative to a structure's bound, up to which a strategy is a good initial incumbent."""

serializable(UnlimitedStrategy)
serializable(UnlimitedStep)


@serializable
@dataclass(frozen=True)
class RelaxationResult:
    """Relaxation of one structure.

    Args:
        bound: lower bound in seconds; inf if the structure has no strategy, -inf if time was over.
        first: index of the largest microbatch size that can fit without activation checkpointing; None if none can.
        optimum: the optimum there, if it may be better than the incumbent.
        free: cost and memory of the optimum, whether it fits or not.
    """

    bound: float
    first: int | None = None
    optimum: UnlimitedStrategy | None = None
    free: UnlimitedStep | None = None


@dataclass(frozen=True)
class OpenNode:
    """A structure that may hold something better than the incumbent; ``first`` as in ``RelaxationResult``."""

    bound: float
    first: int | None
    structure: PipelineStructure


class RootRelaxations:
    """Relaxes structures, see the module's docstring.

    Attributes:
        largest_bounds: no microbatch size takes less time per sample than the largest.

    The solver's ``exposure`` holds the multipliers for structures without a pipeline: the best of the previous
    structure, None for the first.
    """

    largest_microbatch_bounds_all = True

    def __init__(self, solver: SubproblemSolver) -> None:
        self.solver, self.context, self.problems = solver, solver.context, solver.problems
        self.coster, self.processes = solver.coster, solver.processes
        self.clock, self.incumbent, self.learnt = solver.clock, solver.incumbent, solver.learnt

    def relax_all(self, structures: Sequence[PipelineStructure]) -> list[OpenNode]:
        """Relax structures, keep optima that fit, and return the structures left open."""
        if not self.context.kind.searcher_proves_bounds:
            self._search_largest_microbatch(structures)
            return []
        return self.open_nodes(
            structures, self.processes.spread([partial(self.relax_structure, each) for each in structures])
        )

    def open_nodes(self, structures: Sequence[PipelineStructure], looks: Sequence[RelaxationResult]) -> list[OpenNode]:
        """Keep the optima of these relaxations that fit, and return the structures left open."""
        left = []
        for structure, look in sorted(zip(structures, looks, strict=True), key=_quickest_first):
            self.incumbent.raise_lower_bound(structure.key, look.bound)
            if look.free is not None and look.first is not None:
                size = self.context.micro_batches(structure.stages)[look.first]
                self.learnt.free[self.solver.subproblem_key(structure, size).key] = look.free
            fits = self._optimum_fits(structure, look)
            bound = self._raised_bound(structure, look)
            if fits or INFINITE > bound >= self.incumbent.cutoff_s:
                self.context.stats.bounds.append(bound)
            elif bound < INFINITE:
                left.append(OpenNode(bound, look.first, structure))
        if any(each.bound == -INFINITE for each in left):
            self.clock.require_time()
        return left

    def _search_largest_microbatch(self, structures: Sequence[PipelineStructure]) -> None:
        """Search under the memory limit at the largest microbatch that can fit, with a searcher that proves nothing."""
        for structure in structures:
            self.clock.require_time()
            try:
                size = self.context.micro_batches(structure.stages)[self.solver.first(structure)]
                self.context.keep(self.solver.within_limit(self.solver.subproblem_key(structure, size)))
                self.context.stats.bounds.append(-INFINITE)
            except InfeasibleError as error:
                self.context.stats.fail(error)

    def relax_structure(self, structure: PipelineStructure) -> RelaxationResult:
        """Relax one structure. Calls are independent of each other."""
        try:
            self.clock.require_time()
            return self._relax(structure)
        except OutOfTimeError:
            return RelaxationResult(-INFINITE)
        except InfeasibleError as error:
            self.context.stats.fail(error)
            return RelaxationResult(INFINITE)

    def _relax(self, structure: PipelineStructure) -> RelaxationResult:
        if self.incumbent.best is not None and self.problems.folding is not None:
            bound = self.largest(structure)
            if bound >= self.incumbent.cutoff_s:
                return RelaxationResult(bound)
        try:
            first = self.solver.first(structure)
            space = self.solver.subproblem_key(structure, self.context.micro_batches(structure.stages)[first])
            bound, free, optimum = self.solver.relax(space)
            return RelaxationResult(bound, first, optimum, free)
        except InfeasibleError as error:
            if error.constraint != "memory_limit_bytes" or len(self.context.checkpointing_choices) == 1:
                raise
            self.context.stats.fail(error)
            return RelaxationResult(self.largest(structure))

    def _optimum_fits(self, structure: PipelineStructure, look: RelaxationResult) -> bool:
        """Cost an optimum that may beat the incumbent; keep it and return True if it fits."""
        optimum = look.optimum
        if optimum is None or look.first is None:
            return False
        if optimum.cost_s >= self.incumbent.cutoff_s and not self.context.kind.has_pinned_storage:
            return False
        space = self.solver.subproblem_key(structure, self.context.micro_batches(structure.stages)[look.first])
        candidate = self.coster.fitting(space, self.coster.cost_in_turn(space, [(0.0, optimum.strategy)]))
        self.context.keep(candidate)
        return candidate is not None

    def _raised_bound(self, structure: PipelineStructure, look: RelaxationResult) -> float:
        """Raise a structure's bound with multipliers that model its exposed communication better.

        The best ones become the first multipliers of the next structure. Optima that fit are kept.
        """
        bound, optimum = look.bound, look.optimum
        if (
            optimum is None
            or look.first is None
            or not self.solver.problems_are_lower_bounds()
            or not self.context.kind.wants_bounds
        ):
            return bound
        space = self.solver.subproblem_key(structure, self.context.micro_batches(structure.stages)[look.first])
        planes, best, is_first = (
            CostPlanes(self.problems, structure.view),
            space.overlap_weights,
            self.solver.overlap_weights is None,
        )
        planes.add(space, optimum.strategy, optimum.cost_s)
        tried, given = (
            [space.overlap_weights],
            deque((COUNT_ALL_COMMUNICATION, *PROPOSALS) if is_first else (COUNT_ALL_COMMUNICATION,)),
        )
        for _ in range(MAX_MULTIPLIERS if is_first else MAX_MULTIPLIERS_OF_OTHERS):
            exposure, height = planes.highest()
            if bound >= (1 - self.context.options.gap_tolerance) * self.incumbent.cutoff_s or self.clock.out_of_time():
                break
            if height <= bound * (1 + MIN_BOUND_GAIN) or exposure in tried or (given and not is_first):
                # The bound hardly rises any more; other multipliers may still lead to a faster strategy.
                if not given:
                    break
                exposure = given.popleft()
            tried.append(exposure)
            space = replace(space, overlap_weights=exposure)
            layouts = self.problems.build(space, None) if exposure.whole else self.solver.build_pruned(space)
            try:
                result = self.solver.search(layouts.problem, roughly=True)
            except InfeasibleError:  # a rough search may find no assignment of the layouts that pruning leaves
                continue
            strategy = self.problems.strategy(layouts, result.assignment)
            is_open = exposure.whole or result.cost_s < self.incumbent.cutoff_s
            if is_open and result.memory_bytes <= self.context.limit:
                self.context.keep(self.coster.fitting(space, self.coster.cost_in_turn(space, [(0.0, strategy)])))
            if exposure.whole:
                continue
            raised = min(result.lower_bound_s, self.incumbent.cutoff_s)  # pruned layouts cost at least the cutoff
            if raised > bound:
                bound, best = raised, exposure
            planes.add(space, strategy, result.cost_s)
        self.solver.overlap_weights = best
        return bound

    def open_roomily(self, opened: Sequence[OpenNode]) -> None:
        """Find an initial incumbent if no optimum fits: optima at the largest microbatch that fits half of the memory.

        Keeps those that fit and are close to their bound.
        """
        for each in opened:
            with suppress(InfeasibleError):
                at = self.solver.first(each.structure, self.context.limit // 2)
                space = self.solver.subproblem_key(each.structure, self.context.micro_batches(1)[at])
                *_, optimum = self.solver.relax(space)
                if optimum is not None and optimum.cost_s <= NEAR_BOUND * each.bound:
                    self.context.keep(
                        self.coster.fitting(space, self.coster.cost_in_turn(space, [(0.0, optimum.strategy)]))
                    )

    def largest(self, structure: PipelineStructure) -> float:
        """A bound on a structure from its largest microbatch that splits evenly, without the memory limit.

        Uses the repeated blocks alone if there are any. With stages, once-a-step communication usually exceeds what a
        microbatch can hide, so the bound is the higher of two: counting all of that communication, or none.
        """
        sizes = self.context.micro_batches(structure.stages)
        for size in sizes[:-1] or sizes:
            space = self.solver.subproblem_key(structure, size)
            try:
                floor = self._floor(space)
                if floor >= self.incumbent.cutoff_s and self.solver.problems_are_lower_bounds():
                    return floor
                more = (
                    (ONLY_OVERLAPPED_COMMUNICATION,) if structure.stages > 1 and self.context.kind.wants_bounds else ()
                )
                return max(
                    self._blocks_or_all_s(replace(space, overlap_weights=each))
                    for each in (space.overlap_weights, *more)
                )
            except InfeasibleError:
                continue
        return -INFINITE

    def _blocks_or_all_s(self, space: SubproblemKey) -> float:
        layouts = self.solver.build_pruned(space)
        bound = self.solver.blocks_bound_s(layouts)
        if bound == -INFINITE:
            bound = self.solver.search(layouts.problem).lower_bound_s
        return min(bound * self.solver.busy_fraction(space), self.incumbent.cutoff_s)

    def _floor(self, space: SubproblemKey) -> float:
        """A bound on a subproblem and smaller microbatches without edge costs: of all ops and of the fullest stage."""
        return max(self.problems.least_s(space), self.problems.least_blocks_s(space)) * self.solver.busy_fraction(space)

    def is_out_of_reach(self, structure: PipelineStructure) -> bool:
        """Whether the floor of the largest microbatch that splits evenly, and so of all, is above the incumbent."""
        if not self.largest_microbatch_bounds_all:
            return False
        sizes = self.context.micro_batches(structure.stages)
        for size in sizes[:-1] or sizes:
            with suppress(InfeasibleError):
                floor = self._floor(self.solver.subproblem_key(structure, size))
                return floor >= self.incumbent.cutoff_s and self.solver.problems_are_lower_bounds()
        return False


def _quickest_first(entry: tuple[PipelineStructure, RelaxationResult]) -> float:
    optimum = entry[1].optimum
    return INFINITE if optimum is None else optimum.cost_s
