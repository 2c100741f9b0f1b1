"""Shared state of a search: options, time limit, incumbent and findings."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from autosbp.errors import InfeasibleError
from autosbp.program.microbatch_loss import mixes_samples
from autosbp.search.bounds.memory_capacity_bound import MultiplierHints
from autosbp.search.bounds.pipeline_bound import PipelineBounds
from autosbp.search.bounds.stage_bound import StageBounds
from autosbp.search.branch_and_bound.candidate import Candidate
from autosbp.search.branch_and_bound.clock import Clock, Report
from autosbp.search.branch_and_bound.incumbent import Incumbent
from autosbp.search.branch_and_bound.microbatch_sizes import micro_batches
from autosbp.search.branch_and_bound.search_stats import SearchStats
from autosbp.search.plan_options import PlanOptions
from autosbp.search.problem.cost_weights import FASTEST, GATHER_PER_STEP, GATHER_PER_USE
from autosbp.search.stages.layout_problems import LayoutProblems, PipelineStructure, SubproblemId, SubproblemKey

ENOUGH_EVALUATIONS, USUAL_S = 40_000_000, 20.0
"""Costed values after which no further search starts, at the default time limit; scales with longer limits."""
Groups = tuple[int, ...]
Parts = tuple[float, float, float]
"""Seconds before the repeated blocks, of one block, and after the blocks."""


@dataclass(frozen=True)
class SearchMode:
    """How to search.

    Args:
        searcher: name of the searcher.
        storages: parameter shardings to try, fastest first.
        proves: whether to prove bounds.
        pinned: some parameters are pinned to a layout other than their ops'. They may cost less than the problems say,
            which do not model communication that they share.
    """

    searcher: str
    parameter_shardings: tuple[str, ...] = (FASTEST, GATHER_PER_STEP, GATHER_PER_USE)
    wants_bounds: bool = True
    has_pinned_storage: bool = False

    @property
    def searcher_proves_bounds(self) -> bool:
        """Whether the searcher proves bounds."""
        return self.searcher in ("auto", "exact", "exhaustive", "tied")


@dataclass(frozen=True)
class UnlimitedStep:
    """Optimum of a subproblem without the memory limit, if it is better than the incumbent."""

    cost_s: float
    memory_bytes: int


@dataclass
class OpenStructure:
    """A structure that is not proved to be worse than the incumbent.

    Args:
        structure: stages and mesh view.
        bounds: lower bound in seconds for each microbatch size, largest first.
        searched: bounds at the end of its search, for an even partition of the work.
        worked: bounds before any pipeline bubble was added.
    """

    structure: PipelineStructure
    bounds: list[float]
    searched: list[float]
    bubble_free_bounds: list[float] = field(default_factory=list)


@dataclass
class SharedFindings:
    """Findings that searches of subproblems share.

    Args:
        exceeding: structures and microbatch sizes with strategies whose peak memory exceeds the limit although the sum
            over ops fits.
        rough: bounds of subproblems that were searched to a rough gap; None outside of rough search.
        relaxations: per subproblem, its relaxed bound and the Lagrange multiplier of memory that gives it.
        free: optima without the memory limit.
        stage_bounds: bounds of stages, by structure.
        wait_bounds: bounds with the pipeline bubble, by structure.
        hints: good Lagrange multipliers, by number of stages.
        left: open structures, for ``StagePruning.settle``.
        pending: subproblems that do not fit even with all blocks checkpointed, with their bounds.
        parts: bounds of the parts of subproblems on groups of devices; None if no blocks are folded.
    """

    over_limit: set[tuple[Hashable, int]] = field(default_factory=set)
    rough: dict[SubproblemId, float] | None = None
    relaxations: dict[SubproblemId, tuple[float, float]] = field(default_factory=dict)
    free: dict[SubproblemId, UnlimitedStep] = field(default_factory=dict)
    stage_bounds: dict[Hashable, StageBounds] = field(default_factory=dict)
    bubble_bounds: dict[Hashable, PipelineBounds] = field(default_factory=dict)
    hints: dict[int, MultiplierHints] = field(default_factory=dict)
    left: list[OpenStructure] = field(default_factory=list)
    pending: list[tuple[float, SubproblemKey]] = field(default_factory=list)
    parts: dict[tuple[Groups, SubproblemId], tuple[SubproblemKey, Parts | None]] = field(default_factory=dict)


class SearchContext:
    """Shared state of a search.

    Args:
        problems: builds the layout problems.
        options: of the plan.
        limit: bytes per device.
        deadline, report: see ``Clock``.

    Attributes:
        mixing_op: the op because of which the batch is not split into microbatches; "" if it may be.
        recomputes: whether blocks are checkpointed: the values to try in turn.

    Raises:
        InfeasibleError: checkpointing is requested and the model has no repeated blocks.
    """

    def __init__(
        self, problems: LayoutProblems, options: PlanOptions, limit: int, deadline: float, report: Report | None = None
    ) -> None:
        self.problems, self.options, self.limit = problems, options, limit
        self.mixing_op = "" if options.micro_batch else mixes_samples(problems.graph, problems.global_batch)
        self.incumbent, self.findings = Incumbent(), SharedFindings()
        self.clock = Clock(options.time_limit_s, deadline, self.incumbent, report)
        if options.recompute and not problems.blocks:
            raise InfeasibleError("recompute", options.recompute, None, "the model has no repeated blocks")
        every = (False, True) if problems.blocks else (False,)
        self.checkpointing_choices = every if options.recompute is None else (bool(options.recompute),)
        self.kind, self.stats = SearchMode(options.searcher), SearchStats()
        self._total_stats, self._initial_evaluations = self.stats, 0

    def micro_batches(self, stages: int) -> list[int]:
        """Microbatch sizes to try, largest first.

        A batch whose samples the loss compares with each other is not split, unless ``micro_batch`` asks for it.
        """
        options, devices = self.options, self.problems.network.cluster.num_devices
        whole = self.problems.global_batch
        asked = options.micro_batch or (whole if self.mixing_op else None)
        return list(micro_batches(whole, stages, devices, options.schedules, asked))

    def begin(self, kind: SearchMode, tally: SearchStats, best: Candidate | None) -> None:
        """Reset for a new search with an initial strategy; keeps ``exceeding`` and ``parts``."""
        self.kind, self.stats, self._total_stats, self._initial_evaluations = kind, tally, tally, tally.evaluations
        tally.failure = None
        self.incumbent.begin(best)
        vars(self.findings).update(vars(SharedFindings(over_limit=self.findings.over_limit, parts=self.findings.parts)))
        self.clock.late = False

    def keep(self, candidate: Candidate | None) -> None:
        """Offer a strategy as incumbent, and report it if it is the best."""
        if candidate is not None and self.incumbent.keep(candidate):
            self.clock.tell()

    def is_budget_exhausted(self) -> bool:
        """Whether no further search starts: out of evaluations or time with a strategy, or stopped by the caller.

        Call before a search that would start, as it sets ``clock.late``.
        """
        enough = ENOUGH_EVALUATIONS * max(1.0, self.clock.limit_s / USUAL_S)
        if self.incumbent.best is not None and self._total_stats.evaluations - self._initial_evaluations >= enough:
            self.clock.late = True
            return True
        return self.clock.is_over()

    @contextmanager
    def counted(self) -> Iterator[SearchStats]:
        """Collect the statistics of searches inside the block separately."""
        before, self.stats = self.stats, SearchStats(self.stats.share)
        try:
            yield self.stats
        finally:
            self.stats = before

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Undo findings and incumbents of the block at its end, except caches and a stop by the caller."""
        found, learnt, late = _copied(self.incumbent), _copied(self.findings), self.clock.late
        self.incumbent.kept = []
        try:
            yield
        finally:
            vars(self.incumbent).update(found)
            vars(self.findings).update(learnt)
            self.clock.late = late


def _copied(found: Incumbent | SharedFindings) -> dict[str, Any]:
    return {name: each.copy() if isinstance(each, (dict, set, list)) else each for name, each in vars(found).items()}
