"""Costs of a plan's baselines, which serve as comparison and as initial incumbents of the search.

A background process starts to cost the baselines together with the search. If the search quickly finds a strategy that
fits, the background process continues, and the search asks for its results before the long phases. Otherwise the
background process is stopped, and both processes cost the baselines before the search continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType

from autosbp.costmodel.boxing import BoxingModel
from autosbp.errors import InfeasibleError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Baseline, Strategy
from autosbp.sbp.mesh import Mesh
from autosbp.search import SEARCHERS, SearchOptions
from autosbp.search.branch_and_bound.best_first import BestFirstSearch
from autosbp.search.branch_and_bound.candidate import Candidate, fastest
from autosbp.search.branch_and_bound.clock import OutOfTimeError
from autosbp.search.branch_and_bound.context import SearchMode
from autosbp.search.branch_and_bound.pipeline_structures import PipelineStructures
from autosbp.search.branch_and_bound.search_stats import SearchStats
from autosbp.search.infeasibility import at_limit
from autosbp.search.plan_options import PlanOptions
from autosbp.search.problem.baselines import Recipe, Roles, recipe
from autosbp.search.problem.builder_base import Allowed
from autosbp.search.problem.cost_weights import UNSHARDED
from autosbp.search.problem.zero_baselines import best_zero_strategy
from autosbp.search.stages.layout_problems import PipelineStructure, SubproblemKey
from autosbp.utils.parallel import BackgroundTask, submit
from autosbp.utils.serialization import serializable

serializable(Baseline)
BASELINE_SHARE = 0.1
"""Share of a whole search's evaluations for one baseline. Most baselines are solved immediately."""
SEARCH_STOPPED = "the search was stopped"


class Baselines:
    """Costs the requested baselines.

    After the time limit, if the search has an initial strategy, the remaining baselines are skipped. A skipped baseline
    is reported as neither feasible nor infeasible.

    Args:
        search: search over the plan's problems.
        options: of the plan.
        asked: the requested pipeline structures.
        roles: roles of the graph's parameters.
        mesh: mesh of prime axes.
        fills: whether the model's blocks and the batch fill this number of stages.
    """

    def __init__(
        self,
        search: BestFirstSearch,
        options: PlanOptions,
        asked: PipelineStructures,
        roles: Roles,
        mesh: Mesh,
        fills: Callable[[int], bool],
    ) -> None:
        self.search, self.options, self.asked, self.roles, self.mesh = search, options, asked, roles, mesh
        self.problems, self.clock, self.can_fill = search.problems, search.clock, fills
        is_constrained = bool(asked.pins or asked.degrees or options.stage_of or options.grid)
        self._may_start_search = not is_constrained and options.storage in (None, UNSHARDED)

    def all(self, began: float, *, needed: bool = True) -> list[Baseline]:
        """Cost all baselines.

        Args:
            began: ``time.monotonic()`` at which the work on the plan began.
            needed: whether the search needs at least one of them as its initial strategy.
        """
        clock, found = self.clock, list[Baseline]()
        clock.end = began + self.options.time_limit_s
        for name in self.options.baselines:
            # Without an initial strategy for the search, a baseline must run until it finds one.
            self.search.incumbent.best = None
            clock.may_end_empty = not needed or not self._may_start_search or self.start(found) is not None
            baseline = self._baseline(name)
            found.append(replace(baseline, free_of=self._violated_options(baseline)))
        clock.may_end_empty = False
        return found

    def _violated_options(self, baseline: Baseline) -> tuple[str, ...]:
        """Names of the options that a baseline violates."""
        options, strategy = self.options, baseline.strategy
        if strategy is None:
            return ()
        apart = self._is_zero(baseline.name)
        broken = {
            "pins": bool(options.pins),
            "data_parallel": options.data_parallel is not None,
            "tensor_parallel": options.tensor_parallel is not None,
            "stage_of": bool(options.stage_of),
            "grid": options.grid is not None,
            "stages": options.stages not in (None, strategy.num_stages),
            "micro_batch": options.micro_batch not in (None, strategy.micro_batch),
            "storage": options.storage is not None and (apart or options.storage != UNSHARDED),
            "recompute": bool(options.recompute) and not strategy.recompute,
        }
        return tuple(name for name, is_broken in broken.items() if is_broken)

    def unknown(self) -> list[Baseline]:
        """All baselines with the outcome of a search that was stopped before it reached them."""
        return [
            Baseline(name, None, None, None, f"{SEARCH_STOPPED} before it was found") for name in self.options.baselines
        ]

    def start(self, baselines: Sequence[Baseline]) -> Candidate | None:
        """The fastest baseline inside the search space, so that the plan is never slower; None if there is none.

        Baselines have no pins, degrees or given stages, and store parameters as they are used. With such options no
        baseline qualifies.
        """
        options = self.options
        if not self._may_start_search:
            return None
        found = [
            Candidate(baseline.strategy, baseline.costs)
            for baseline in baselines
            if baseline.strategy is not None
            and baseline.costs is not None
            and options.stages in (None, baseline.strategy.num_stages)
            # ZeRO baselines have their own batch and parameter sharding, and no activation checkpointing.
            and options.micro_batch in (None, baseline.strategy.micro_batch)
            and not (self._is_zero(baseline.name) and (options.storage or options.recompute))
        ]
        return fastest(found)

    def _is_zero(self, name: str) -> bool:
        found = recipe(name, self.mesh, self.roles)
        return bool(found.gather) or found.storage != UNSHARDED

    def _baseline(self, name: str) -> Baseline:
        found = recipe(name, self.mesh, self.roles)
        try:
            self.clock.require_time()
            if found.gather:
                sizes = [self.problems.global_batch] if found.whole_batch else self.search.context.micro_batches(1)
                strategy, costs = best_zero_strategy(
                    found, sizes, self.search.context.limit, self._fastest_without_limit, self.problems.compute
                )
                return Baseline(name, costs, strategy, True)
            kind = SearchMode(found.searcher, (found.storage,), wants_bounds=False)
            best = self.search.over(self._grids(name, found), kind, SearchStats(BASELINE_SHARE))
        except InfeasibleError as error:
            return Baseline(name, None, None, False, str(at_limit(error, self.search.context.limit)))
        except OutOfTimeError:
            return Baseline(name, None, None, None, f"{self._why_ended()} before it was found")
        cut = f"{self._why_ended()} before all of its grids were searched" if self.search.cut else ""
        return Baseline(name, best.costs, best.strategy, True, cut)

    def _why_ended(self) -> str:
        limit_s = self.options.time_limit_s
        return SEARCH_STOPPED if self.clock.stopped else f"the time limit of {limit_s:g} s was reached"

    def _grids(self, name: str, found: Recipe) -> list[PipelineStructure]:
        """The baseline's device grids, and those of its pipeline stages if the baseline uses pipelines."""
        structures = [PipelineStructure(1, view, allowed) for view, allowed in found.grids]
        if not found.pipelines or self.asked.pins:
            return structures
        # As usual, tensor parallel groups stay inside a node if nodes have several devices.
        inside = 1 + (len([axis for axis in self.mesh.axes if axis.level == 1]) or self.mesh.ndim)
        return [
            PipelineStructure(stages, view, allowed)
            for stages, mesh in self.asked.meshes(self.can_fill)
            for view, allowed in recipe(name, mesh, self.roles).grids[:inside]
        ]

    def _fastest_without_limit(
        self, view: Mesh, allowed: Allowed, micro_batch: int
    ) -> tuple[LogicalGraph, Strategy, BoxingModel]:
        """The fastest strategy of a baseline on a mesh view, without a memory limit."""
        self.clock.require_time()
        layouts = self.problems.build(SubproblemKey(PipelineStructure(1, view, allowed), micro_batch, UNSHARDED), None)
        result = SEARCHERS["exact"](layouts.problem, SearchOptions(seed=self.options.seed))
        strategy = self.problems.strategy(layouts, result.assignment)
        return self.problems.bound(micro_batch), strategy, self.problems.boxing(view)


class CostedBaselines:
    """Initial strategies of a search: a ``known`` one and the best baseline.

    A context manager that ends its background task.

    Args:
        baselines: to cost.
        began: ``time.monotonic()`` at which the work on the plan began.
        known: a strategy that the caller has, or None.
        search: the search that uses the strategies.
        leave: minimum share of the time limit left for the search after the baselines.
    """

    def __init__(
        self, baselines: Baselines, began: float, known: Candidate | None, search: BestFirstSearch, leave: float
    ) -> None:
        self.baselines, self.start_time, self.known, self.search, self.search_share = (
            baselines,
            began,
            known,
            search,
            leave,
        )
        self._baselines: list[Baseline] | None = None
        self._task: BackgroundTask[list[Baseline]] | None = None
        self._exit_stack = ExitStack()

    def __enter__(self) -> CostedBaselines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit_stack.close()

    def begin(self) -> None:
        """Cost the baselines, in the background if that pays; called once the search has a strategy."""
        self.start_in_background()
        if self._baselines is None and self._task is None and self.baselines.options.baselines:
            self._baselines = self._cost_all()
            self.search.clock.extend(self.search_share, self.start_time)

    def start_in_background(self) -> None:
        """Cost the baselines in the background if that pays; called when the search may soon have a strategy."""
        known = self._baselines is not None or self._task is not None or not self.baselines.options.baselines
        if not known and self.baselines.problems.worth_second_process:
            self._task = self._exit_stack.enter_context(submit(self._cost_all))
            if not self._task.in_background:
                self.drop()

    def drop(self) -> None:
        """Stop the background task: the search needs the baselines first, so both processes cost them."""
        self._exit_stack.close()
        self._task = None

    def _cost_all(self) -> list[Baseline]:
        return self.baselines.all(self.start_time, needed=False)

    def all(self, *, needed: bool = True) -> list[Baseline]:
        """Wait for the baselines; ``needed``: the search needs at least one as its initial strategy."""
        if self._baselines is None:
            begun = self._task
            self._baselines = (
                self.baselines.all(self.start_time, needed=needed) if begun is None else self._result(begun)
            )
            self.search.clock.extend(self.search_share, self.start_time)
        return self._baselines

    def _result(self, begun: BackgroundTask[list[Baseline]]) -> list[Baseline]:
        """Result of the background task, which does not notice that a caller stopped the search; then all unknown."""
        try:
            return begun.result(self.search.clock.wait)
        except OutOfTimeError:
            return self.baselines.unknown()

    def best(self) -> Candidate | None:
        """The fastest initial strategy."""
        return fastest((self.known, self.baselines.start(self.all())))
