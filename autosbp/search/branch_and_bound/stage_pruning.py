"""Prunes structures and microbatch sizes whose stages lack the memory for a better step (``bounds.stage_bound``)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from autosbp.costmodel.memory.library_workspace import library_bytes
from autosbp.errors import InfeasibleError
from autosbp.search.bounds.memory_capacity_bound import BoundedStrategies, CheckpointingChoice
from autosbp.search.bounds.pipeline_bound import MAX_GAME_STAGES, PipelineBounds
from autosbp.search.bounds.stage_bound import MicrobatchLimits, StageBounds
from autosbp.search.branch_and_bound.candidate import INFINITE
from autosbp.search.branch_and_bound.checkpointing import BLOCKS_PER_RUN
from autosbp.search.branch_and_bound.clock import OutOfTimeError
from autosbp.search.branch_and_bound.context import OpenStructure
from autosbp.search.branch_and_bound.subproblem_solver import SubproblemSolver
from autosbp.search.stages.layout_problems import PipelineStructure

NUM_RAISED_FIRST = 2
"""Number of structures whose bounds are raised before those of the others."""
SHARE, BUBBLE_BOUND_FROM = 0.25, 0.95
"""Share of the time limit for bounds after the search; and fraction of the best step, see below.

The pipeline bubble of repeated blocks is bounded only if the other bounds reach this fraction, because it adds little.
"""


class StagePruning:
    """Prunes structures with bounds of their stages, see the module's docstring."""

    def __init__(self, solver: SubproblemSolver) -> None:
        self.solver, self.context, self.processes = solver, solver.context, solver.processes
        self.problems, self.clock = solver.problems, solver.clock
        self.incumbent, self.learnt = solver.incumbent, solver.learnt

    def keep_open(self, structure: PipelineStructure, bounds: float | Sequence[float]) -> None:
        """Keep a structure for ``settle``, with these bounds: one for all microbatch sizes, or one per size."""
        count = len(self.context.micro_batches(structure.stages))
        known = [bounds] * count if isinstance(bounds, float) else list(bounds)
        self.learnt.left.append(OpenStructure(structure, known, known))

    def pruned_sizes(self, structure: PipelineStructure) -> list[bool]:
        """Per microbatch size, whether stages lack the memory for a step better than the incumbent.

        All False if no bounds apply. Stops at the deadline.
        """
        if self.incumbent.best is None or not self._bounds_stages():
            return [False] * len(self.context.micro_batches(structure.stages))
        stages = self._stage_bounds(structure)
        if self.incumbent.kept is not None:  # known results only
            return stages.infeasible_sizes(self.incumbent.cutoff_s, lambda: True)
        found = stages.infeasible_sizes(self.incumbent.cutoff_s, self.clock.out_of_time)
        self._keep_hints(structure, stages)
        return found

    def shut_at_once(self, structures: Sequence[PipelineStructure]) -> None:
        """Compute ``shut`` of several structures, on two cores.

        Structures do not use the Lagrange multipliers that others find.
        """
        if self.incumbent.best is None or not self._bounds_stages():
            return
        structures = [each for each in structures if not self._stage_bounds(each).is_decided(self.incumbent.cutoff_s)]
        if len(structures) < 2:
            return
        every = [self._stage_bounds(structure) for structure in structures]

        def look(stages: StageBounds) -> MicrobatchLimits:
            stages.infeasible_sizes(self.incumbent.cutoff_s, self.clock.out_of_time)
            return stages.export_limits()

        found = self.processes.spread([partial(look, stages) for stages in every])
        for structure, learnt in zip(structures, found, strict=True):
            # Start from scratch whichever process did the work, so that every process knows the same.
            del self.learnt.stage_bounds[structure.key]
            stages = self._stage_bounds(structure)
            stages.learn(learnt)
            self._keep_hints(structure, stages)

    def _keep_hints(self, structure: PipelineStructure, stages: StageBounds) -> None:
        self.learnt.hints[structure.stages] = {**self.learnt.hints.get(structure.stages, {}), **stages.hints}

    def finalize_bounds(self) -> None:
        """Add the lowest bound of the open structures, raised by stage and bubble bounds as far as time allows."""
        if not self.learnt.left:
            return
        level = self.incumbent.cutoff_s
        if (
            self.context.kind.searcher_proves_bounds
            and self.context.kind.wants_bounds
            and not self.problems.network.cluster.groups
        ):
            deadline = min(max(self.clock.deadline, time.monotonic() + SHARE * self.clock.limit_s), self.clock.end)
            self.context.stats.bounds.append(self._least_raised(level, lambda: time.monotonic() >= deadline))
        else:
            self.context.stats.bounds.append(
                min([level, *(min(left.bounds) for left in self.learnt.left if left.bounds)])
            )

    def _least_raised(self, level: float, overdue: Callable[[], bool]) -> float:
        """The lowest raised bound, at most ``level``.

        Structures with few stages have the smallest bubble, so their bounds tell how far those with more stages need to
        be raised. If bounds of few stages enumerate cuts, which takes longest, that comes last, and only as far as the
        bounds of more stages require.
        """
        waiting = [left for left in self.learnt.left if min(left.bounds, default=INFINITE) < level]
        waiting.sort(key=lambda left: (left.structure.stages, min(left.bounds)))
        if self.problems.folding is None:
            few = [left for left in waiting if left.structure.stages <= MAX_GAME_STAGES]
            many = [left for left in waiting if left.structure.stages > MAX_GAME_STAGES]
            few = self._raise_bounds(few, level, overdue)
            many = self._raise_bounds(many, level, overdue)
            least = min([level, *(min(left.bounds) for left in many)])
            few = self._raise_bounds(few, least, overdue, cut_by_cut=True)
            return min([least, *(min(left.bounds) for left in few)])
        least = level
        for some in (waiting[:NUM_RAISED_FIRST], sorted(waiting[NUM_RAISED_FIRST:], key=lambda left: min(left.bounds))):
            lower = [left for left in some if min(left.bounds) < least]
            least = min([least, *(min(left.bounds) for left in self._raise_bounds(lower, least, overdue))])
        return least

    def _raise_bounds(
        self, some: Sequence[OpenStructure], level: float, overdue: Callable[[], bool], *, cut_by_cut: bool = False
    ) -> list[OpenStructure]:
        """Structures with their bounds raised up to a level.

        Each is raised in isolation, so that results do not depend on the process.
        """
        found = self.processes.spread([partial(self._raise_bound, left, level, overdue, cut_by_cut) for left in some])
        return [
            replace(left, bounds=bounds, bubble_free_bounds=worked)
            for left, (bounds, worked) in zip(some, found, strict=True)
        ]

    def _raise_bound(
        self, left: OpenStructure, level: float, overdue: Callable[[], bool], cut_by_cut: bool
    ) -> tuple[list[float], list[float]]:
        """Raised bounds of a structure, and those before the pipeline bubble was added."""
        if not cut_by_cut:
            worked = self._stage_bounds_s(left, level, overdue)
            left = replace(left, bounds=worked, bubble_free_bounds=worked)
        if self.problems.folding is None or BUBBLE_BOUND_FROM * self.incumbent.cutoff_s <= min(left.bounds):
            return self._waited(left, level, overdue, cut_by_cut=cut_by_cut), left.bubble_free_bounds
        return left.bounds, left.bubble_free_bounds

    def _stage_bounds_s(self, left: OpenStructure, level: float, overdue: Callable[[], bool]) -> list[float]:
        """The structure's bounds, or stage bounds where these are higher, without other structures' multipliers."""
        if not self._bounds_stages():
            return left.bounds
        stages = self._stage_bounds(left.structure)
        stages.infeasible_sizes(level, overdue)
        return [
            bound if bound >= level else max(bound, stages.least(at, level)) for at, bound in enumerate(left.bounds)
        ]

    def _waited(
        self, left: OpenStructure, level: float, overdue: Callable[[], bool], *, cut_by_cut: bool = False
    ) -> list[float]:
        """Bounds with the pipeline bubble, raised only as far as the lowest of them requires.

        For repeated blocks, the bound of evenly partitioned work is computed again.
        """
        bounds = list(left.bounds)
        structure, storages, schedules = (
            left.structure,
            self.context.kind.parameter_shardings,
            self.context.options.schedules,
        )
        if structure.stages == 1 or self.context.kind.has_pinned_storage or self.problems.stages_share_hardware:
            return bounds
        sizes = self.context.micro_batches(structure.stages)
        if structure.key not in self.learnt.bubble_bounds:
            self.learnt.bubble_bounds[structure.key] = PipelineBounds(
                self.problems, structure, sizes, storages, schedules
            )
        waits = self.learnt.bubble_bounds[structure.key]
        for at in sorted(range(len(bounds)), key=bounds.__getitem__):
            if bounds[at] < level and not overdue():
                # Two bounds of the work of all stages. Bounds of repeated blocks already include a bubble.
                searched_s, worked_s = left.searched[at], left.bubble_free_bounds[at]
                if self.problems.folding is not None:
                    searched_s = worked_s = self._even_partition_bound_s(structure, sizes[at])
                until = overdue if cut_by_cut else None
                bounds[at] = max(bounds[at], waits.raised(at, searched_s, worked_s, level, until))
            level = min(level, bounds[at])
        return bounds

    def _even_partition_bound_s(self, structure: PipelineStructure, size: int) -> float:
        """A bound of the work, partitioned evenly over the stages."""
        space = self.solver.subproblem_key(structure, size)
        try:
            layouts = self.solver.build_pruned(space)
            with self.context.counted():
                bound_s = self.solver.search(layouts.problem).lower_bound_s * self.solver.busy_fraction(space)
            return min(bound_s, self.incumbent.cutoff_s)  # pruned layouts cost at least the cutoff
        except InfeasibleError:
            return INFINITE
        except OutOfTimeError:
            return -INFINITE

    def _bounds_stages(self) -> bool:
        """Whether stage bounds apply: only for repeated blocks.

        Parameters pinned to a layout other than their ops' may cost less than the problems say, and stages that share
        hardware are faster while others wait.
        """
        kind = self.context.kind
        known = (
            kind.searcher_proves_bounds
            and kind.wants_bounds
            and not kind.has_pinned_storage
            and not self.problems.network.cluster.groups
        )
        return known and self.problems.folding is not None and not self.problems.stages_share_hardware

    def _stage_bounds(self, structure: PipelineStructure) -> StageBounds:
        key = structure.key
        if key not in self.learnt.stage_bounds:
            room = self.context.limit - library_bytes(self.problems.compute.device.kind)
            wanted = BoundedStrategies(
                self.context.kind.parameter_shardings, self._recomputed(), self.context.options.schedules, room
            )
            sizes = self.context.micro_batches(structure.stages)
            hints = dict(self.learnt.hints.get(structure.stages, {}))
            self.learnt.stage_bounds[key] = StageBounds(self.problems, structure, sizes, wanted, hints)
        return self.learnt.stage_bounds[key]

    def _recomputed(self) -> tuple[CheckpointingChoice, ...]:
        """Checkpointing choices of ``StrategyCheckpointing``."""
        every = self.context.options.recompute
        if every:
            return (CheckpointingChoice(False, True, every),)
        if len(self.context.checkpointing_choices) == 1:
            return (CheckpointingChoice(True, False),)
        return CheckpointingChoice(True, True), CheckpointingChoice(False, True, max(BLOCKS_PER_RUN))
