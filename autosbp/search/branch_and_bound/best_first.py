"""Best-first search over pipeline structures, with a lower bound on the step time of all their strategies.

A structure is a number of stages and a mesh view. Each one is first solved without the memory limit, at the largest
microbatch that can fit. This bounds the structure, smaller microbatches included: they have the same work and bytes
with more latencies. Structures whose bound is below the incumbent are then searched under the memory limit, lowest
bound first. Without a pipeline, an optimum that fits solves its structure. With one, smaller microbatches mean a
smaller bubble and more latencies: the search starts where the bubble is about a tenth of the step, and tries further
sizes while they improve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from autosbp.errors import InfeasibleError
from autosbp.search.branch_and_bound.candidate import INFINITE, ROUNDING, Candidate
from autosbp.search.branch_and_bound.checkpointing_search import CheckpointingSearch
from autosbp.search.branch_and_bound.clock import OutOfTimeError
from autosbp.search.branch_and_bound.context import SearchContext, SearchMode
from autosbp.search.branch_and_bound.microbatch_sweep import MicrobatchSweep, SweepMessage, SweepState
from autosbp.search.branch_and_bound.root_relaxations import (
    COUNT_ALL_COMMUNICATION,
    OpenNode,
    RelaxationResult,
    RootRelaxations,
)
from autosbp.search.branch_and_bound.search_stats import SearchStats
from autosbp.search.branch_and_bound.stage_pruning import StagePruning
from autosbp.search.branch_and_bound.strategy_coster import StrategyCoster
from autosbp.search.branch_and_bound.subproblem_solver import CLOSED_GAP, SubproblemSolver
from autosbp.search.stages.layout_problems import PipelineStructure

MIN_IMPROVEMENT = 1.1
"""Step time relative to a bound, above which much improvement is possible."""
COUNT_COMMUNICATION_FROM = 0.5
"""Multiplier above which stage bounds count all communication that happens once a step."""


class BackgroundBaselines(Protocol):
    """Source of further initial strategies, which takes a while to compute (``baseline_costs.CostedBaselines``)."""

    def start_in_background(self) -> None: ...

    def drop(self) -> None: ...

    def begin(self) -> None: ...

    def best(self) -> Candidate | None: ...


class BestFirstSearch:
    """Search over pipeline structures, see the module's docstring. ``cut``: it ended before it had covered all."""

    def __init__(self, context: SearchContext, solver: SubproblemSolver | None = None) -> None:
        self.solver = solver or SubproblemSolver(context, StrategyCoster(context))
        self.context, self.coster, self.problems = context, self.solver.coster, context.problems
        self.clock, self.incumbent, self.processes = context.clock, context.incumbent, self.solver.processes
        self.relaxations, self.pruning, self.cut = RootRelaxations(self.solver), StagePruning(self.solver), False
        self.checkpointing = CheckpointingSearch(self.solver, self.pruning)
        self.sweep = MicrobatchSweep(self.solver, self.pruning, self.relaxations)

    def over(
        self,
        structures: Iterable[PipelineStructure],
        kind: SearchMode,
        tally: SearchStats,
        best: Candidate | None = None,
        baselines: BackgroundBaselines | None = None,
    ) -> Candidate:
        """The best strategy over these structures, at least as good as ``best``; at the time limit, of those searched.

        Args:
            structures: to search.
            kind: searcher, parameter shardings, and whether to prove bounds.
            tally: collects evaluations, bounds and failures.
            best: initial incumbent, or None.
            offers: further initial strategies, used if nothing fits at once or much is left to search.

        Raises:
            InfeasibleError: no strategy found.
            OutOfTimeError: the time is over, there is no strategy, and the clock's ``gives_up`` is set.
        """
        self.context.begin(kind, tally, best)
        self.cut = False
        # The tied searcher needs repeated layers with equal costs, independent of their position in the step.
        self.solver.overlap_weights = COUNT_ALL_COMMUNICATION if kind.searcher == "tied" else None
        try:
            found = self._run(structures, baselines)
            tally.cut |= self.clock.late
            return found
        except OutOfTimeError:
            self.cut = tally.cut = True
            floor = min(self.incumbent.lower_bounds.values(), default=-INFINITE)
            tally.bounds.append(floor if floor < INFINITE else -INFINITE)
            if self.incumbent.best is None:
                raise
            if kind.wants_bounds:
                self.coster.choose_bucket_sizes()
            return self.incumbent.best

    def _run(self, structures: Iterable[PipelineStructure], offers: BackgroundBaselines | None) -> Candidate:
        kind = self.context.kind
        if kind.searcher_proves_bounds:
            self.solver.start_rough_search()
        every = list(structures)
        self.incumbent.lower_bounds = dict.fromkeys((structure.key for structure in every), -INFINITE)
        single = [structure for structure in every if structure.stages == 1 or not kind.searcher_proves_bounds]
        piped = [structure for structure in every if structure.stages > 1 and kind.searcher_proves_bounds]

        def recompute(some: Iterable[OpenNode | SweepState]) -> None:
            self.checkpointing.recompute([(each.bound, each.structure) for each in some])

        # The quickest searches first: no pipeline, mesh views with few axes. A result that fits prunes the rest. Then
        # pipelines: if memory is short, they are the first to fit.
        least = min((structure.view.ndim for structure in single), default=0)
        early = [structure for structure in single if structure.view.ndim == least or not kind.wants_bounds]
        rest = [structure for structure in single if structure not in early]
        if offers is not None and self.incumbent.best is None:
            offers.start_in_background()
        opened = self.relaxations.relax_all(early)
        if offers is not None and self.incumbent.best is None:
            self.relaxations.open_roomily(opened)
        if offers is not None and self.incumbent.best is not None:
            offers.begin()
        elif offers is not None:
            offers.drop()
            self.context.keep(offers.best())
        if kind.searcher_proves_bounds and kind.wants_bounds:
            self.checkpointing.apply_uneven_checkpointing()
            opened = self._search_best_within_limit(opened)
        # If the incumbent has no pipeline, pipelines hardly prune the others.
        alone = self.incumbent.best is not None and self.incumbent.best.strategy.num_stages == 1
        ahead = rest if alone and kind.searcher_proves_bounds and kind.wants_bounds else []
        more, walks = self._relax_in_parallel(ahead, piped)
        tight = [walk for walk in walks if self.sweep.sort_key(walk)[0]]
        self._run_sweeps([walk for walk in walks if walk not in tight])
        opened += more + self.relaxations.relax_all([structure for structure in rest if structure not in ahead])
        bounded = [each.structure for each in opened if each.bound < self.incumbent.cutoff_s * (1 - ROUNDING)]
        if offers is not None and (bounded or tight):
            self.context.keep(offers.best())
        self.pruning.shut_at_once([*bounded, *(walk.structure for walk in tight)])
        left = [each for each in opened if self._is_open(each)]
        tight = [walk for walk in tight if self._may_fit(walk.structure)]
        if len(self.context.checkpointing_choices) > 1 and kind.searcher_proves_bounds and kind.wants_bounds:
            # Checkpointing is quicker to search than layouts under the memory limit, and prunes that search.
            binds = [walk for walk in walks if walk in tight or self.coster.was_over_limit(walk.structure, walk.sizes)]
            recompute([*left, *binds])
        self._run_sweeps(tight)
        self._search_within_limit(left)
        if len(self.context.checkpointing_choices) > 1 and kind.searcher_proves_bounds and self.incumbent.best is None:
            recompute([*left, *tight])
        self.checkpointing.search_within_limit()
        self.solver.refine(every)
        if self.incumbent.best is None:
            nothing = InfeasibleError("global_batch", self.problems.global_batch, None, "no microbatch splits evenly")
            raise self.context.stats.failure or nothing
        if kind.searcher_proves_bounds and kind.wants_bounds:
            self.checkpointing.apply_uneven_checkpointing()
        self.pruning.finalize_bounds()
        if kind.wants_bounds:
            self.coster.choose_bucket_sizes()
        return self.incumbent.best

    def _run_sweeps(self, walks: Sequence[SweepState]) -> None:
        """Sweep the microbatch sizes of pipelines, most promising first, and keep the bounds of what was searched."""
        for walk, bounds in self.processes.in_rounds(
            sorted(walks, key=self.sweep.sort_key),
            lambda walk: walk.bound < self.incumbent.cutoff_s and not self.context.is_budget_exhausted(),
            self.sweep.pipelined_sizes,
            lambda walks: self.pruning.shut_at_once([walk.structure for walk in walks]),
        ):
            self.pruning.keep_open(walk.structure, walk.bound if bounds is None else bounds)

    def _search_within_limit(self, left: Sequence[OpenNode]) -> None:
        """Search structures without a pipeline under the memory limit, lowest bound first."""

        def is_open(each: OpenNode) -> bool:
            return (
                each.first is not None
                and each.bound < self.incumbent.cutoff_s
                and not self.context.is_budget_exhausted()
            )

        ranked = sorted(left, key=lambda each: each.bound)
        for each, _ in self.processes.in_rounds(ranked, is_open, self._limited_sizes):
            self.pruning.keep_open(each.structure, each.bound)

    def _search_best_within_limit(self, opened: Sequence[OpenNode]) -> list[OpenNode]:
        """If promising, search the structure with the lowest bound under the memory limit first; return the others.

        It is promising if the incumbent is far above its bound and half of the memory holds a microbatch. If time runs
        out early, no other structure comes as close to the bound.
        """
        least = min(opened, key=lambda each: each.bound, default=None)
        if least is None or self.incumbent.best is None or least.bound * MIN_IMPROVEMENT > self.incumbent.cutoff_s:
            return list(opened)
        try:
            self.solver.first(least.structure, self.context.limit // 2)
        except InfeasibleError:
            return list(opened)
        self._search_within_limit([least])
        return [each for each in opened if each is not least]

    def _is_open(self, opened: OpenNode) -> bool:
        """Whether a structure may still hold something better than the incumbent."""
        if opened.bound >= self.incumbent.cutoff_s * (1 - ROUNDING):
            self.context.stats.bounds.append(opened.bound)
            return False
        return self._may_fit(opened.structure)

    def _may_fit(self, structure: PipelineStructure) -> bool:
        """Whether stages may have enough memory for something better than the incumbent."""
        if not all(self.pruning.pruned_sizes(structure)):
            return True
        self.context.stats.bounds.append(self.incumbent.cutoff_s)
        return False

    def _relax_in_parallel(
        self, single: Sequence[PipelineStructure], piped: Sequence[PipelineStructure]
    ) -> tuple[list[OpenNode], list[SweepState]]:
        """Relax structures without a pipeline and start sweeps of those with one, on two cores.

        The tasks are independent. Each process keeps the problems that it built.

        Returns:
            Nodes left open without a pipeline, and sweeps of pipelines.
        """
        mine: dict[int, SweepState] = {}

        def walked(at: int) -> SweepMessage | None:
            walk = self.sweep.start_sweep(piped[at])
            if walk is not None:
                mine[at] = walk
            return None if walk is None else walk.told()

        tasks: list[Callable[[], RelaxationResult | SweepMessage | None]] = [
            partial(self.relaxations.relax_structure, each) for each in single
        ]
        tasks += [partial(walked, at) for at in range(len(piped))]
        found = self.processes.spread(tasks)
        left = self.relaxations.open_nodes(single, [each for each in found if isinstance(each, RelaxationResult)])
        walks = []
        for at, told in enumerate(each for each in found if not isinstance(each, RelaxationResult)):
            walk = mine.get(at) or (None if told is None else SweepState(piped[at], *told))
            self.incumbent.raise_lower_bound(piped[at].key, INFINITE if walk is None else walk.bound)
            if walk is not None:
                if walk.solved[walk.start].overlap_weights.reduce > COUNT_COMMUNICATION_FROM:
                    self.problems.communication_bound.add(piped[at].key)
                walks.append(walk)
        return left, walks

    def _limited_sizes(self, opened: OpenNode) -> None:
        """Search one set of devices under the memory limit.

        Starts at a microbatch that leaves room for choices, goes on to smaller ones, then to larger ones, while they
        improve.
        """
        structure, first, sizes = opened.structure, opened.first, self.context.micro_batches(1)
        assert first is not None
        try:
            roomy = self.solver.first(structure, self.context.limit // 2)
        except InfeasibleError:
            roomy = first
        shut = self.pruning.pruned_sizes(structure)
        for direction in (range(roomy, len(sizes)), range(roomy - 1, first - 1, -1)):
            for at in direction:
                before = self.incumbent.cutoff_s
                if opened.bound >= before or self.clock.is_over():
                    return
                if shut[at]:
                    continue
                self.solver.search_parameter_shardings(structure, sizes[at])
                # Without the memory limit, smaller microbatches are no faster than this one.
                free_s = self.solver.unlimited_bound_s(self.solver.subproblem_key(structure, sizes[at]))
                done = (
                    at >= roomy
                    and self.solver.problems_are_lower_bounds()
                    and free_s >= self.incumbent.cutoff_s * (1 - CLOSED_GAP)
                )
                if self.incumbent.best is not None and (self.incumbent.cutoff_s == before or done):
                    break
