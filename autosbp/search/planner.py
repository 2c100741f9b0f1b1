"""``make_plan``: from a graph and a cluster to a plan with its certificate and baselines.

The search space: number of pipeline stages, microbatch size, schedule and cuts; and, for the devices of one stage,
layouts of every op and the sharding of parameters. ``branch_and_bound.best_first`` searches and bounds it. Baselines
are ordinary points of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

from autosbp.cluster.memory_reserve import usable_memory_bytes
from autosbp.cluster.spec import Cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.offload import host_of
from autosbp.errors import InfeasibleError, InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.precision import in_precision
from autosbp.plan.plan import Costs, Plan, Strategy
from autosbp.sbp.rules import check_graph
from autosbp.search.baseline_costs import Baselines, CostedBaselines
from autosbp.search.branch_and_bound.best_first import BestFirstSearch
from autosbp.search.branch_and_bound.bucket_sizes import bucket_sizes
from autosbp.search.branch_and_bound.candidate import INFINITE, Candidate, fastest, step_s
from autosbp.search.branch_and_bound.context import SearchContext, SearchMode
from autosbp.search.branch_and_bound.least_memory import LeastMemorySearch
from autosbp.search.branch_and_bound.pipeline_structures import PipelineStructures
from autosbp.search.branch_and_bound.search_stats import SearchStats, more_useful_error
from autosbp.search.branch_and_bound.strategy_coster import BUCKET_SIZE_CUTOFF
from autosbp.search.branch_and_bound.unlike_groups import group_search
from autosbp.search.constraint_conflict import with_conflict
from autosbp.search.device_count import fewer_devices
from autosbp.search.infeasibility import blame_batch, with_needed_memory, with_whole_batch
from autosbp.search.least_work import WorkBound
from autosbp.search.plan_json import plan_document
from autosbp.search.plan_options import PlanOptions, check_determinism, check_memory, check_offload
from autosbp.search.problem.baselines import Roles
from autosbp.search.problem.cost_weights import GATHER_PER_USE, UNSHARDED
from autosbp.search.progress import BASELINES, FEWER, SEARCH, Progress, ProgressReporter
from autosbp.search.stages.layout_problems import LayoutProblems, PipelineStructure
from autosbp.search.stages.plan_cache import PLAN_CACHE
from autosbp.search.warm_start import WarmStart, cost_warm_start
from autosbp.utils.gc_thresholds import raised_gc_thresholds

_log = logging.getLogger(__name__)

MIN_SEARCH_SHARE = 0.25
"""Minimum share of the time limit reserved for search, however long baselines take."""
MAX_BYTES = 2**62
"""More than the memory of any device."""
LOW_MEMORY_SHARE = 0.5
"""Share of the time limit for low-memory strategies, after a search that adds memory up by op found none that fits."""
NEED_SHARE = 0.25
"""Share of the time limit for finding the memory that would suffice."""


def make_plan(
    graph: LogicalGraph,
    cluster: Cluster,
    calibration: Calibration | None = None,
    options: PlanOptions | None = None,
    progress: Progress | None = None,
    start: Strategy | None = None,
) -> Plan:
    """The best strategy for training ``graph`` on ``cluster``, with costs, bound, baselines and provenance.

    If the model's work does not fill all devices, ``fewer_devices`` says how many would suffice.

    Args:
        graph: as captured, with a symbolic batch.
        cluster: all its devices are used.
        calibration: measured on this cluster; without one, costs come from the cluster's data sheet.
        options: see ``PlanOptions``; the global batch defaults to 8 samples per device.
        progress: called with the current phase and the best step time so far (inf before there is one, and during
            baselines and ``fewer_devices``). If it returns False, planning soon ends with the best strategy found.
        start: strategy of an earlier plan, for the same or another batch, changed layers or links. If it fits, it is
            costed here and the search starts from it, so the plan is no slower. Otherwise a warning in the plan says
            why not.

    Raises:
        InputError: a batch that does not divide, a calibration of another cluster, or a start together with layout
            options that it cannot be checked against.
        InfeasibleError: no strategy meets the options or fits in memory; ``conflict`` names a minimal set of options
            that exclude each other.
    """
    began_s = time.monotonic()
    with raised_gc_thresholds():
        found = _plan_with_fewer_devices(
            graph, cluster, calibration, options or PlanOptions(), ProgressReporter(progress), start
        )
        PLAN_CACHE.trim()
    step_s, bound_s = found.document["step_time_s"], found.document["lower_bound_s"]
    words = "planned %s on %s: step %.6g s, lower bound %s s, %d strategies evaluated, %.1f s"
    spent_s = time.monotonic() - began_s
    _log.info(words, graph.name, cluster.name, step_s, bound_s, found.document["evaluations"], spent_s)
    return found


def _plan_with_fewer_devices(
    graph: LogicalGraph,
    cluster: Cluster,
    calibration: Calibration | None,
    options: PlanOptions,
    watch: ProgressReporter,
    start: Strategy | None,
) -> Plan:
    planner, plan, winner = first_plan(graph, cluster, calibration, options, watch, start)

    def on(fewer: Cluster, measured: Calibration | None, asked: PlanOptions) -> tuple[Strategy, Costs]:
        found = Planner(graph, fewer, measured, asked, watch, part=FEWER).found()[1]
        return found.strategy, found.costs

    def ended() -> bool:
        return watch.stopped or time.monotonic() >= planner.started + options.time_limit_s

    began = time.monotonic()
    fewer = fewer_devices((winner.strategy, winner.costs), cluster, calibration, options, on, planner.least_s_on, ended)
    return plan if fewer is None else plan.with_field("fewer_devices", fewer, time.monotonic() - began)


def first_plan(
    graph: LogicalGraph,
    cluster: Cluster,
    calibration: Calibration | None,
    options: PlanOptions,
    watch: ProgressReporter,
    start: Strategy | None = None,
) -> tuple[Planner, Plan, Candidate]:
    """A plan with its planner and strategy; an infeasibility error names the options that exclude each other."""
    planner = None
    try:
        planner = Planner(graph, cluster, calibration, options, watch)
        return planner, *planner.found(start=start)
    except InfeasibleError as error:
        if watch.stopped:
            raise

        def feasible(fewer: PlanOptions) -> bool:
            return Planner(graph, cluster, calibration, fewer, None).feasible()

        if planner is not None:
            error = blame_batch(error, options, planner.global_batch)
        found = with_conflict(error, options, feasible)
        if planner is None and found.constraint == "memory_limit_bytes" and found.conflict:
            # Rejected before a search, so the memory that would suffice is still unknown.
            free = replace(options, memory_limit_bytes=None, baselines=())
            found = with_needed_memory(
                found, Planner(graph, cluster, calibration, free, None).low_memory_strategies(share=NEED_SHARE)
            )
        if planner is not None:
            found = with_whole_batch(found, planner.search.context.mixing_op, planner.global_batch)
        raise found from None


def _by_memory(candidate: Candidate) -> tuple[int, float]:
    return candidate.costs.memory_bytes_per_device, candidate.costs.step_time_s


class Planner:
    """One search, reported to ``watch`` as ``part`` of the work.

    ``problems`` may come from another planner of the same graph, cluster, batch and pins, to build them only once.

    Raises:
        InputError: as ``make_plan``.
        InfeasibleError: options that can be rejected without a search.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        cluster: Cluster,
        calibration: Calibration | None,
        options: PlanOptions,
        watch: ProgressReporter | None,
        problems: LayoutProblems | None = None,
        part: str = SEARCH,
    ) -> None:
        check_graph(graph)
        options = options.on(cluster)
        graph, self.given_cluster = in_precision(graph, options.precision), cluster
        cluster = cluster.in_precision(options.precision)
        if options.deterministic:
            check_determinism(graph, cluster.device.kind)
        summary = graph.summary()
        check_memory(summary["num_parameters"], summary["parameter_bytes"], cluster, options)
        if calibration is not None and (cluster.groups or calibration.cluster.groups):
            raise InputError("calibration", calibration.cluster.name, "not supported for clusters with groups")
        if calibration is not None and calibration.cluster.levels_key != cluster.levels_key:
            raise InputError("calibration", calibration.cluster.name, f"expected a calibration of {cluster.name}")
        self.graph, self.cluster, self.calibration, self.options = graph, cluster, calibration, options
        self.started = time.monotonic()
        self.limit = options.memory_limit_bytes or usable_memory_bytes(cluster.device, cluster.num_devices)
        global_batch = options.global_batch or 8 * cluster.num_devices
        if options.micro_batch is not None and global_batch % options.micro_batch:
            raise InputError(
                "micro_batch", options.micro_batch, (f"expected a divisor of the global batch {global_batch}")
            )
        self.mesh = cluster.mesh()
        self.roles = Roles(graph)
        self.asked = PipelineStructures(graph, cluster, options, self.roles)
        if options.offload:
            host_of(cluster)
            check_offload(graph, options)
        self.global_batch = global_batch
        self.problems = problems or self._problems(offload=False)
        self.part, self.warm_start = part, WarmStart()
        self._leanest: list[Candidate] = []
        self._host_needs: int | None = None
        self._watch = watch
        self.search = self._make_search(self.problems, self.started)

    def _problems(self, *, offload: bool, cluster: Cluster | None = None) -> LayoutProblems:
        cluster = cluster or self.cluster
        return LayoutProblems(
            self.graph, NetworkModel(cluster, self.calibration), ComputeModel(cluster.device, self.calibration),
            global_batch=self.global_batch, optimizer=self.options.optimizer, pins=self.asked.pins, offload=offload,
            sizes=bucket_sizes(self.options.bucket_bytes, self.cluster, self.calibration),
            schedules=self.options.schedules,
        )  # fmt: skip

    def _make_search(self, problems: LayoutProblems, begun: float, part: str = "") -> BestFirstSearch:
        """A search. With ``offload`` there are two, with and without offloading, which share the time."""
        share = 0.5 if self.options.offload else 1.0
        watch, part = self._watch, part or self.part
        report = None if watch is None else lambda best: watch.tell(part, best)
        deadline = begun + share * self.options.time_limit_s
        return BestFirstSearch(SearchContext(problems, self.options, self.limit, deadline, report))

    def feasible(self) -> bool:
        """Whether the strategy of least memory fits."""
        lean = self.low_memory_strategies(enough=self.limit)
        return bool(lean) and lean[0].costs.memory_bytes_per_device <= self.limit

    def found(self, known: Candidate | None = None, start: Strategy | None = None) -> tuple[Plan, Candidate]:
        """Search for the plan.

        Args:
            known: a strategy that fits; the result is no slower.
            start: strategy of an earlier plan; the result is no slower if it is in the search space.
        """
        tally = SearchStats()
        self.warm_start = self._cost_warm_start(start)
        known = fastest((known, self.warm_start.candidate))
        with CostedBaselines(self.baselines(), self.started, known, self.search, MIN_SEARCH_SHARE) as offered:
            if not self._is_single_search:
                offered.all()
            self.search.clock.enough_s = self._work_bound.enough_s
            if self._is_single_search:
                winner = self._search_structures(tally, known, offered)
            elif self.options.offload:
                winner = self._search_with_offload(tally, offered.best())
            else:
                winner = self._search_structures(tally, offered.best())
            baselines, best = offered.all(needed=False), offered.best()
        if best is not None and best.costs.step_time_s <= BUCKET_SIZE_CUTOFF * winner.costs.step_time_s:
            winner = min(winner, self.search.coster.with_best_bucket_size(best), key=step_s)
        proved_s = min(tally.bounds, default=-INFINITE)
        enough = winner.costs.step_time_s <= self.search.clock.enough_s
        document = plan_document(
            self.graph, self.given_cluster, self.calibration, self.options, self._limit_of(winner.costs),
            (winner.strategy, winner.costs), baselines,
            max(self._work_bound.seconds, proved_s if self._problems_are_lower_bounds else -INFINITE), tally.evaluations,
            self.warm_start.reason,
            bound=self.problems.bound(winner.strategy.micro_batch),
            ended_early=self.kind().searcher_proves_bounds and tally.cut and not enough,
        )  # fmt: skip
        return Plan(document, time.monotonic() - self.started), winner

    @property
    def _problems_are_lower_bounds(self) -> bool:
        """Whether the search problems are lower bounds.

        With ZeRO-3, or with parameters pinned to a layout other than their ops', strategies share communication that
        the problems do not model.
        """
        return self.options.storage != GATHER_PER_USE and self.asked.pins.is_storage_unsharded

    def baselines(self) -> Baselines:
        """The requested baselines, with their own search."""
        search = self._make_search(self.problems, self.started, BASELINES)
        search.coster.known_costs = self.search.coster.known_costs
        search.relaxations.largest_microbatch_bounds_all = not self._sizes_are_independent
        return Baselines(search, self.options, self.asked, self.roles, self.mesh, self.can_fill)

    @property
    def _is_single_search(self) -> bool:
        """Whether a single search covers the whole space, so that baselines can be costed in parallel with it."""
        kind = self.kind()
        simple = not self.options.offload and not self.cluster.groups and not self._sizes_are_independent
        return simple and kind.searcher_proves_bounds and not kind.has_pinned_storage

    def _limit_of(self, costs: Costs) -> int:
        """Memory limit of the fullest device; the devices of stages may differ."""
        return costs.effective_limit_bytes(self.options.memory_limit_bytes or MAX_BYTES) if costs.stages else self.limit

    def _search_with_offload(self, tally: SearchStats, start: Candidate | None) -> Candidate:
        """The best strategy with the optimizer state on the devices, or on the hosts if only that fits or is faster."""
        with suppress(InfeasibleError):
            start = self._search_structures(tally, start)
        self.problems, enough_s = self._problems(offload=True), self.search.clock.enough_s
        self.search = self._make_search(self.problems, time.monotonic())
        self.search.clock.enough_s = enough_s
        self.search.clock.extend(0.0, self.started)
        return self._search_structures(tally, start)

    def _search_structures(
        self, tally: SearchStats, start: Candidate | None, offered: CostedBaselines | None = None
    ) -> Candidate:
        """The best strategy.

        The search adds memory up by op, so it may find nothing although the smallest strategy just fits. Then it starts
        again from such a strategy.
        """
        structures, kind = self.structures(), self.kind()
        if self.cluster.groups:
            return self._search_groups(structures, kind, tally, start)
        try:
            return self._search_sizes(structures, kind, tally, start, offered)
        except InfeasibleError as error:
            if error.constraint == "global_batch" and self.options.stage_of:
                text = ", ".join(f"{name}={stage}" for name, stage in self.options.stage_of.items())
                raise InfeasibleError("stage_of", text, None, "no pipeline cuts satisfy these assignments") from None
            if error.constraint != "memory_limit_bytes" or not kind.searcher_proves_bounds:
                raise
            lean = self._low_memory(self.problems, share=LOW_MEMORY_SHARE)
            self._leanest = sorted([*self._leanest, *lean], key=_by_memory)
            if not self._leanest and self._host_needs is None:
                raise
            if not lean or lean[0].costs.memory_bytes_per_device > self.limit:
                raise self._memory_error() from None
        fitting = [each for each in lean if each.costs.memory_bytes_per_device <= self.limit]
        return self._search_sizes(structures, kind, tally, min(fitting, key=step_s))

    @property
    def _sizes_are_independent(self) -> bool:
        """Whether each microbatch size is searched separately, because the largest does not bound the others."""
        return bool(self.problems.compute.measured) or not self._work_bound.in_proportion

    def _search_sizes(
        self,
        structures: Sequence[PipelineStructure],
        kind: SearchMode,
        tally: SearchStats,
        start: Candidate | None,
        offered: CostedBaselines | None = None,
    ) -> Candidate:
        """The best strategy of these structures.

        If op times were measured, or work is not proportional to samples, a smaller microbatch may need less time per
        sample than a larger one. Bounds then hold for one microbatch size only, and each size is searched separately.
        """
        search, context, options = self.search, self.search.context, self.options
        own = {each.stages: context.micro_batches(each.stages) for each in structures}
        sizes = sorted({size for each in own.values() for size in each}, reverse=True)
        if not self._sizes_are_independent or not kind.searcher_proves_bounds or len(sizes) < 2:
            return search.over(structures, kind, tally, start, offered)
        problem: InfeasibleError | None = None
        for size in sizes:
            context.options = replace(options, micro_batch=size)
            fills = [each for each in structures if size in own[each.stages] or self.global_batch >= size * each.stages]
            try:
                start = search.over(fills, kind, tally, start)
            except InfeasibleError as error:
                problem = more_useful_error(problem, error)
            finally:
                context.options = options
        if start is None:
            assert problem is not None
            raise problem
        return start

    def _search_groups(
        self, structures: Sequence[PipelineStructure], kind: SearchMode, tally: SearchStats, start: Candidate | None
    ) -> Candidate:
        """The best strategy on unlike devices.

        Either all devices at the pace of the slowest, or pipeline stages on the groups.
        """
        single = [structure for structure in structures if structure.stages == 1]
        piped = [structure for structure in structures if structure.stages > 1]
        problem: InfeasibleError | None = None
        if single or not piped or not kind.searcher_proves_bounds:
            try:
                start = self.search.over(single if kind.searcher_proves_bounds else structures, kind, tally, start)
            except InfeasibleError as error:
                problem = error
        if piped and kind.searcher_proves_bounds:
            offload = self.problems.offload

            def of(cluster: Cluster) -> LayoutProblems:
                return self._problems(offload=offload, cluster=cluster)

            deadline = max(self.search.clock.deadline, time.monotonic() + 0.5 * self.options.time_limit_s)
            search = group_search(self.search.context, self.cluster, of, deadline)
            search.clock.extend(0.0, self.started)
            search.clock.enough_s = self.search.clock.enough_s
            try:
                return search.over(piped, kind, tally, start)
            except InfeasibleError as error:
                problem = error if problem is None else more_useful_error(problem, error)
        if start is None:
            raise problem or InfeasibleError("global_batch", self.global_batch, None, "no microbatch splits evenly")
        return start

    def low_memory_strategies(self, enough: int = 0, share: float = 1.0) -> list[Candidate]:
        """Low-memory strategies (``LeastMemorySearch``), smallest first.

        With ``offload``, also those with the optimizer state on the hosts, if the hosts can hold it.

        Args:
            enough: bytes; the search ends once a strategy takes no more.
            share: of the time limit.
        """
        if not self.options.offload:
            return self._low_memory(self.problems, enough, share)
        found = self._low_memory(self._problems(offload=True), enough, share / 2)
        if not found or found[0].costs.memory_bytes_per_device > enough:
            found += self._low_memory(self._problems(offload=False), enough, share / 2)
        return sorted(found, key=_by_memory)

    def _low_memory(self, problems: LayoutProblems, enough: int = 0, share: float = 1.0) -> list[Candidate]:
        deadline = time.monotonic() + share * self.options.time_limit_s
        found = LeastMemorySearch(problems, self.options, deadline).over(self.structures(), self.kind(), enough)
        self._note_host(each for each in found if not self.search.coster.host_has_room(each.strategy))
        return [each for each in found if self.search.coster.host_has_room(each.strategy)]

    def _note_host(self, refused: Iterable[Candidate]) -> None:
        """Record the least host memory needed by a strategy that fits on the devices."""
        for each in refused:
            if each.costs.memory_bytes_per_device <= self.limit:
                needed = self.search.coster.host_needs(each.strategy)
                self._host_needs = needed if self._host_needs is None else min(self._host_needs, needed)

    def _memory_error(self) -> InfeasibleError:
        """The infeasibility error: of the devices, or of hosts that are too small for offloading that would fit."""
        lean = self._leanest[:1]
        error = InfeasibleError("memory_limit_bytes", self.limit, None)
        if self._host_needs is None:
            return with_needed_memory(error, lean)
        detail = "this is the host memory per device, which must hold the offloaded state"
        if lean:
            detail += (
                f"; without offloading, a device takes {lean[0].costs.memory_bytes_per_device} bytes of {self.limit}"
            )
        limit = host_of(self.cluster).memory_bytes
        return InfeasibleError("host.memory_bytes", limit, self._host_needs, detail, found=True)

    def kind(self) -> SearchMode:
        """The search mode. Pinned parameters determine their own sharding."""
        pins = self.asked.pins
        if pins:
            return SearchMode(self.options.searcher, (UNSHARDED,), has_pinned_storage=not pins.is_storage_unsharded)
        if self.options.storage is not None:
            return SearchMode(self.options.searcher, (self.options.storage,))
        return SearchMode(self.options.searcher)

    def structures(self) -> list[PipelineStructure]:
        """The pipeline structures to search."""
        return self.asked.all(self.can_fill)

    def least_s_on(self, cluster: Cluster) -> float:
        """Least step time of the same batch on other devices, from the model's work at the data sheet's rates."""
        return replace(self._work_bound, cluster=cluster, calibration=None).seconds

    @cached_property
    def _work_bound(self) -> WorkBound:
        """Work bound over all microbatch sizes of any number of stages."""
        sizes = {size for each in self.structures() for size in self.search.context.micro_batches(each.stages)}
        return WorkBound(
            self.problems.bound, sorted(sizes, reverse=True) or [self.global_batch],
            self.global_batch, self.cluster, self.calibration, self.options,
        )  # fmt: skip

    def can_fill(self, stages: int) -> bool:
        """Whether the model's blocks and the batch fill this number of stages."""
        return stages <= self.problems.max_stages and bool(self.search.context.micro_batches(stages))

    def _cost_warm_start(self, earlier: Strategy | None) -> WarmStart:
        """The strategy of an earlier plan, costed here if it satisfies the options and fits in memory."""
        if earlier is None:
            return WarmStart()
        found = cost_warm_start(earlier, self.problems, self.cluster, self.options)
        if found.candidate is None:
            return found
        limit, needed = self._limit_of(found.candidate.costs), found.candidate.costs.memory_bytes_per_device
        if needed > limit or not self.search.coster.host_has_room(found.candidate.strategy):
            return WarmStart(reason=f"it takes {needed} bytes per device, but the limit is {limit}")
        return found
