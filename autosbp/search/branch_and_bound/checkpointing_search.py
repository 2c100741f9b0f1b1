"""Search with activation checkpointing over structures that memory prevents from being fast without it.

In the results, each stage then checkpoints only as many blocks as it has to (``branch_and_bound.uneven_stages``).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from autosbp.costmodel.pipeline_cost import pipelined_step_s
from autosbp.errors import InfeasibleError
from autosbp.plan.plan import Strategy
from autosbp.search._base import SearchResult
from autosbp.search.branch_and_bound.candidate import INFINITE, Candidate, step_s
from autosbp.search.branch_and_bound.parallel_tasks import TASKS_PER_ROUND
from autosbp.search.branch_and_bound.stage_pruning import StagePruning
from autosbp.search.branch_and_bound.strategy_coster import ESTIMATE_CUTOFF, UNEVEN_CUTOFF
from autosbp.search.branch_and_bound.subproblem_solver import SubproblemSolver
from autosbp.search.branch_and_bound.uneven_stages import UnevenStages
from autosbp.search.stages.layout_problems import PipelineStructure, Subproblem, SubproblemId, SubproblemKey
from autosbp.utils.serialization import serializable

TIME_SHARE = 0.5
"""Fraction of the remaining time after which no more work of this search starts."""
MIN_IMPROVEMENT = 1.1
"""Step time relative to the bound with all blocks checkpointed, below which no more search follows."""
SWEEP_CUTOFF = 1.01
"""Step time relative to the best larger microbatch, above which the sweep over microbatch sizes ends."""
UNEVEN_GRACE_SHARE = 0.25
"""Grace period after the deadline for uneven checkpointing, as a fraction of the time limit."""
SAME_COST_TOLERANCE = 1e-9
"""Relative difference in seconds, below which two results have the same layouts."""
COSTED_AT_ONCE = 4
"""Subproblems whose strategies are costed in parallel, without each other's results.

Costing their memory dominates, and its duration varies widely.
"""
NUM_UNEVEN = 2
"""Number of strategies for which uneven checkpointing is computed."""


@serializable
@dataclass(frozen=True)
class StepEstimate:
    """Approximate step time of the best strategy of a subproblem, whose layouts are those of ``result``."""

    estimate_s: float
    micro_batch: int
    storage: str
    result: SearchResult


@serializable
@dataclass(frozen=True)
class CheckpointingEstimates:
    """Results of one structure.

    ``found``: subproblems that fit if every block is checkpointed. ``pending``: those that do not fit even then, as
    (lower bound in seconds, microbatch size, parameter sharding).
    """

    found: tuple[StepEstimate, ...]
    pending: tuple[tuple[float, int, str], ...]


Entry = tuple[StepEstimate, SubproblemKey]
BuiltSubproblems = dict[SubproblemId, Subproblem]


class CheckpointingSearch:
    """Checkpointing makes a step slower and saves memory.

    So only structures with a bound below the incumbent are searched. Their bounds ignore the memory limit, and also
    hold with checkpointing.
    """

    def __init__(self, solver: SubproblemSolver, bounding: StagePruning) -> None:
        self.solver, self.bounding, self.context = solver, bounding, solver.context
        self.coster, self.processes, self.problems = solver.coster, solver.processes, solver.problems
        self.clock, self.incumbent, self.learnt = solver.clock, solver.incumbent, solver.learnt

    def recompute(self, structures: Iterable[tuple[float, PipelineStructure]]) -> None:
        """Keep the best checkpointed strategy of these structures, given with their bounds.

        Does not search under the memory limit.
        """
        self.learnt.pending, self._start_time = [], time.monotonic()
        made: BuiltSubproblems = {}
        ranked, found = deque(sorted(structures, key=lambda entry: entry[0])), list[Entry]()
        is_known = False
        while self.incumbent.best is None and ranked:
            # A few, until one strategy fits: once that one is improved as far as possible, it prunes the others.
            some = [ranked.popleft() for _ in range(min(TASKS_PER_ROUND, len(ranked)))]
            more = self._estimate_all(some, made, is_known=is_known)
            found, is_known = [*found, *more], is_known or bool(more)
            found = self._keep_fastest(found, made, is_first=True)
            if self.context.kind.wants_bounds:
                self.apply_uneven_checkpointing()
        found += self._estimate_all(ranked, made, is_known=is_known)
        self._keep_fastest(found, made)

    def _keep_fastest(self, found: Sequence[Entry], made: BuiltSubproblems, *, is_first: bool = False) -> list[Entry]:
        """Cost the entries, lowest estimate first, and keep the best.

        With ``is_first``, stop at the first that fits, and return the entries that were not costed.
        """
        left: list[Entry] = []

        def is_open(entry: Entry) -> bool:
            if is_first and self.incumbent.best is not None:
                left.append(entry)
                return False
            late = self.incumbent.best is not None and self._is_share_used()
            return not late and entry[0].estimate_s < self._estimate_cutoff(entry[1]) * self.incumbent.cutoff_s

        def look(entry: Entry) -> None:
            each, space = entry
            layouts = made.get(space.key) or self.problems.build(space, None)
            self.context.keep(self.coster.fitting(space, self.coster.candidates(layouts, each.result)))

        most = TASKS_PER_ROUND if is_first else COSTED_AT_ONCE
        for _ in self.processes.in_rounds(_without_duplicates(found), is_open, look, most=most):
            pass
        return left

    def search_within_limit(self) -> None:
        """Search under the memory limit.

        For subproblems that do not fit with all blocks checkpointed, if the incumbent is far above their bounds.
        """
        for bound, space in sorted(self.learnt.pending, key=lambda entry: entry[0]):
            if self.incumbent.best is not None and (
                self.context.is_budget_exhausted() or MIN_IMPROVEMENT * bound >= self.incumbent.cutoff_s
            ):
                continue
            try:
                self.context.keep(self.solver.solve_within_limit(space, self.incumbent.cutoff_s))
            except InfeasibleError as error:
                self.context.stats.fail(error)

    def apply_uneven_checkpointing(self) -> None:
        """Let each stage checkpoint only what it has to, in the best strategies with equal checkpointing.

        Skips strategies that were processed before.
        """

        def is_open(candidate: Candidate) -> bool:
            late = time.monotonic() > self.clock.deadline + UNEVEN_GRACE_SHARE * self.clock.limit_s
            known = any(candidate.strategy == other for other in self.incumbent.uneven)
            return not late and not known and step_s(candidate) < UNEVEN_CUTOFF * self.incumbent.cutoff_s

        def look(candidate: Candidate) -> Candidate:
            found = self._uneven(candidate)
            self.context.keep(found)
            return candidate if found is None else found

        evens = sorted(self.incumbent.best_checkpointed.values(), key=step_s)[
            : NUM_UNEVEN if self.coster.stages_alike else 0
        ]
        self.incumbent.is_applying_uneven = True
        for candidate, found in self.processes.in_rounds(evens, is_open, look):
            self.incumbent.uneven += [] if found is None else [candidate.strategy, found.strategy]
        self.incumbent.is_applying_uneven = False

    def _uneven(self, candidate: Candidate) -> Candidate | None:
        """Uneven checkpointing of a strategy; None if nothing changes or it no longer fits."""
        if self.context.options.recompute:
            return None
        strategy, problems = candidate.strategy, self.problems
        graph, boxing = problems.bound(strategy.micro_batch), problems.boxing(strategy.mesh)

        def seconds(each: Strategy) -> float:
            return pipelined_step_s(graph, each, boxing, problems.compute, problems.known_chunks)

        uneven = UnevenStages(
            problems, self.coster.links, self.context.limit, self.coster.held, self.clock.require_time
        )
        found = uneven.of(strategy, seconds)
        if found is strategy:
            return None
        return self.coster.fastest_fitting([Candidate(found, self.coster.costs(graph, found, boxing))])

    def _estimate_cutoff(self, space: SubproblemKey) -> float:
        """Largest estimate, relative to the incumbent, at which a strategy of the subproblem is costed."""
        return (
            UNEVEN_CUTOFF
            if self.coster.stages_alike and self.context.kind.wants_bounds and space.stages > 1
            else ESTIMATE_CUTOFF
        )

    def _is_share_used(self) -> bool:
        return self.context.is_budget_exhausted() or time.monotonic() > self._start_time + TIME_SHARE * (
            self.clock.deadline - self._start_time
        )

    def _estimate_all(
        self, structures: Collection[tuple[float, PipelineStructure]], made: BuiltSubproblems, *, is_known: bool
    ) -> list[Entry]:
        """Subproblems of these structures that fit if every block is checkpointed.

        Stores their layouts in ``made``, in this process only. The time limit may end the loop once a subproblem was
        found, here or before (``is_known``).
        """
        found: list[Entry] = []

        def is_open(_: tuple[float, PipelineStructure]) -> bool:
            return not ((found or is_known) and self._is_share_used())

        def prepare(entries: Sequence[tuple[float, PipelineStructure]]) -> None:
            self.bounding.shut_at_once([structure for _, structure in entries])

        at_once = TASKS_PER_ROUND if self.incumbent.best is None else max(len(structures), 1)
        look = partial(self._estimates, made)
        for (_, structure), each in self.processes.in_rounds(structures, is_open, look, prepare, at_once):
            if each is not None:
                found += [(one, SubproblemKey(structure, one.micro_batch, one.storage, True)) for one in each.found]
                self.learnt.pending += [
                    (bound, SubproblemKey(structure, size, storage, True)) for bound, size, storage in each.pending
                ]
        return found

    def _estimates(self, made: BuiltSubproblems, entry: tuple[float, PipelineStructure]) -> CheckpointingEstimates:
        """Estimates of a structure from large microbatches to small ones, while they improve and memory binds.

        Stores layouts in ``made``.
        """
        found: list[StepEstimate] = []
        pending: list[tuple[float, int, str]] = []
        (bound, structure), least, batch = entry, INFINITE, self.problems.global_batch
        sizes, shut = self.context.micro_batches(structure.stages), self.bounding.pruned_sizes(structure)
        for at, size in enumerate(sizes):
            if bound >= self.incumbent.cutoff_s or (self.incumbent.best is not None and self._is_share_used()):
                break
            waited = self.problems.waits(structure.stages, batch // size)
            if shut[at] or bound * (1 + waited * size / batch) >= self.incumbent.cutoff_s:
                continue  # or the pipeline bubble is too large
            try:
                each = self._estimate_fastest_sharding(structure, size, pending, made)
            except InfeasibleError as error:
                self.context.stats.fail(error)
                continue
            if each is None or (each and each[0].estimate_s > SWEEP_CUTOFF * least):
                break
            found += each
            least = min([least, *(one.estimate_s for one in each)])
        return CheckpointingEstimates(tuple(found), tuple(pending))

    def _estimate_fastest_sharding(
        self, structure: PipelineStructure, size: int, pending: list[tuple[float, int, str]], made: BuiltSubproblems
    ) -> list[StepEstimate] | None:
        """Estimate with the fastest parameter sharding with which all fits if every block is checkpointed.

        The other shardings take less memory and are slower. None if memory does not bind.
        """
        for storage in self.context.kind.parameter_shardings:
            space = SubproblemKey(structure, size, storage, True)
            plain = replace(space, again=False)
            # Without checkpointing first: if all fits, no problem with checkpointing is built.
            if all(self.problems.least_memory(each) > self.context.limit for each in (plain, space)):
                continue
            free = self.learnt.free.get(plain.key) or self.solver.search(self.problems.build(plain, None).problem)
            if free.memory_bytes <= self.context.limit and not self.coster.was_over_limit(structure, [size]):
                return (
                    [] if self.coster.was_over_limit(structure, self.context.micro_batches(structure.stages)) else None
                )
            excess = free.memory_bytes - self.context.limit
            if free.cost_s >= ESTIMATE_CUTOFF * self.incumbent.cutoff_s:
                return []
            # With all blocks checkpointed, an op takes at least its least seconds and frees all but its least bytes.
            part = max(excess, 0) / max(free.memory_bytes - self.problems.least_memory(space), 1)
            slower_s = max(0.0, self.problems.least_s(space) - free.cost_s)
            if free.cost_s + min(part, 1.0) * slower_s >= self._estimate_cutoff(space) * self.incumbent.cutoff_s:
                return []
            layouts = self.problems.build(space, None)
            result = self.solver.search(layouts.problem)
            if result.memory_bytes > self.context.limit:
                pending.append((result.lower_bound_s, size, storage))
                continue
            # Interpolate between no block and all blocks, by the bytes that do not fit.
            saved = free.memory_bytes - result.memory_bytes
            part = min(max(excess, 0) / max(saved, 1), 1.0)
            estimate_s = free.cost_s + part * max(result.cost_s - free.cost_s, 0.0)
            made[space.key] = layouts
            return [StepEstimate(estimate_s, size, storage, replace(result, certificate=None))]
        return []


def _without_duplicates(found: Sequence[Entry]) -> list[Entry]:
    """Entries by estimate, without duplicates.

    A mesh view with more axes than its optimum uses repeats the optimum of a view with fewer axes, with the same
    seconds.
    """
    ranked = sorted(found, key=lambda entry: entry[0].estimate_s)
    unlike: list[Entry] = []
    for each, space in ranked:
        kind, least_s = (space.stages, space.micro_batch, space.storage), each.estimate_s * (1 - SAME_COST_TOLERANCE)
        if not any(
            (other.stages, other.micro_batch, other.storage) == kind and one.estimate_s >= least_s
            for one, other in unlike
        ):
            unlike.append((each, space))
    return unlike
