"""``make_plan``: the whole way from a graph and a cluster to a plan with its certificate and baselines.

The space: stages of a pipeline, microbatch, schedule and cuts; for the devices of one stage, layouts of every op, and how
parameters are stored. ``space.best`` searches it and bounds it; baselines are ordinary points of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

from autosbp.cluster import Cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.offload import host_of
from autosbp.errors import InfeasibleError, InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Costs, Plan, Strategy
from autosbp.sbp.rules import check_graph
from autosbp.search._conflict import with_conflict
from autosbp.search._costed_baselines import Baselines, Offered
from autosbp.search._document import plan_document
from autosbp.search._garbage import seldom_collected
from autosbp.search._least_work import LeastWork
from autosbp.search._refusals import of_batch, with_need
from autosbp.search._watch import BASELINES, FEWER, SEARCH, Progress, Watch
from autosbp.search.fewer import fewer_devices
from autosbp.search.plan_options import PlanOptions, require_reproducible, require_room, require_state
from autosbp.search.problem.baselines import Roles
from autosbp.search.problem.weights import AS_USED, USE
from autosbp.search.space.best import Best
from autosbp.search.space.candidate import Candidate
from autosbp.search.space.costing import INFINITE, NEARLY
from autosbp.search.space.groups import GroupSearch
from autosbp.search.space.leanest import Leanest
from autosbp.search.space.message_sizes import sizes_of
from autosbp.search.space.space_solver import Kind
from autosbp.search.space.structures import Structures
from autosbp.search.space.tally import Tally, nearer
from autosbp.search.stages.layouts import LayoutProblems, Structure
from autosbp.search.stages.reuse import REUSE
from autosbp.search.warm_start import Restart, restarted

BASELINES_LEAVE = 0.25
"""Of the time limit: what the search has left at the least, however long baselines took."""
MAX_BYTES = 2**62
"""More than any device has."""
LEAN_SHARE = 0.5
"""The part of it in which lean strategies are looked for, where search, which adds memory up by op, has found none that
fits."""
NEED_SHARE = 0.25
"""The part of the time limit in which the memory that would do is looked for."""


def make_plan(
    graph: LogicalGraph,
    cluster: Cluster,
    calibration: Calibration | None = None,
    options: PlanOptions | None = None,
    progress: Progress | None = None,
    start: Strategy | None = None,
) -> Plan:
    """The best strategy for training ``graph`` on ``cluster``, with costs, bound, baselines and provenance. Where
    devices repeat what others do, or compute for less than half of a step, ``fewer_devices`` says how many would do.

    Args:
        graph: as captured, with its batch symbolic.
        cluster: all its devices are used.
        calibration: measured on this cluster; without one, costs come from the cluster's data sheet.
        options: see ``PlanOptions``; the global batch defaults to 8 samples a device.
        progress: called with what is done now, and the best step time of a strategy so far (inf before there is one, and while
            baselines or fewer devices are looked at); when it returns False, planning soon ends with the best so far.
        start: an earlier plan's strategy, for another batch, changed layers or links, or the same: where it fits it is
            costed anew, search begins with it, and the plan is no slower; else a warning of the plan says why not.

    Raises:
        InputError: for a batch that does not divide, a calibration of another cluster, or a start beside options that say
            more of layouts than could be looked for in it.
        InfeasibleError: when no strategy meets the options or fits in memory; ``conflict`` names a smallest set of options
            that exclude each other.
    """
    with seldom_collected():
        found = _planned(graph, cluster, calibration, options or PlanOptions(), Watch(progress), start)
        REUSE.trim()
    return found


def _planned(
    graph: LogicalGraph,
    cluster: Cluster,
    calibration: Calibration | None,
    options: PlanOptions,
    watch: Watch,
    start: Strategy | None,
) -> Plan:
    planner, plan, winner = first_plan(graph, cluster, calibration, options, watch, start)

    def on(fewer: Cluster, measured: Calibration | None, asked: PlanOptions) -> tuple[Strategy, Costs]:
        found = Planner(graph, fewer, measured, asked, watch, part=FEWER).found()[1]
        return found.strategy, found.costs

    def ended() -> bool:
        return watch.stopped or time.monotonic() >= planner.started + options.time_limit_s

    began = time.monotonic()
    fewer = fewer_devices((winner.strategy, winner.costs), cluster, calibration, options, on, ended)
    return plan if fewer is None else plan.with_member("fewer_devices", fewer, time.monotonic() - began)


def first_plan(
    graph: LogicalGraph,
    cluster: Cluster,
    calibration: Calibration | None,
    options: PlanOptions,
    watch: Watch,
    start: Strategy | None = None,
) -> tuple[Planner, Plan, Candidate]:
    """A plan with its planner and strategy; where there is none, the constraints that exclude each other are named."""
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
            error = of_batch(error, options, planner.global_batch)
        found = with_conflict(error, options, feasible)
        if planner is None and found.constraint == "memory_limit_bytes" and found.conflict:
            # Refused before a search: what would do is not known yet.
            free = replace(options, memory_limit_bytes=None, baselines=())
            found = with_need(found, Planner(graph, cluster, calibration, free, None).leanest(share=NEED_SHARE))
        raise found from None


def _step_s(candidate: Candidate) -> float:
    return candidate.costs.step_time_s


def _by_memory(candidate: Candidate) -> tuple[int, float]:
    return candidate.costs.memory_bytes_per_device, candidate.costs.step_time_s


class Planner:
    """One search, told of as ``part`` of the work. ``problems`` are those of another planner of the same graph, cluster, batch
    and pins, whose parts are not built again."""

    def __init__(
        self,
        graph: LogicalGraph,
        cluster: Cluster,
        calibration: Calibration | None,
        options: PlanOptions,
        watch: Watch | None,
        problems: LayoutProblems | None = None,
        part: str = SEARCH,
    ) -> None:
        check_graph(graph)
        if options.deterministic:
            require_reproducible(graph, cluster.device.kind)
        summary = graph.summary()
        require_room(summary["num_parameters"], summary["parameter_bytes"], cluster, options)
        if calibration is not None and (cluster.groups or calibration.cluster.groups):
            raise InputError("calibration", calibration.cluster.name, "none is expected of a cluster with groups")
        if calibration is not None and calibration.cluster.levels_key != cluster.levels_key:
            raise InputError("calibration", calibration.cluster.name, f"a calibration of {cluster.name} is expected")
        self.graph, self.cluster, self.calibration, self.options = graph, cluster, calibration, options
        self.started = time.monotonic()
        self.limit = options.memory_limit_bytes or cluster.device.memory_bytes
        global_batch = options.global_batch or 8 * cluster.num_devices
        if options.micro_batch is not None and global_batch % options.micro_batch:
            raise InputError("micro_batch", options.micro_batch, f"a divisor of the global batch {global_batch}")
        self.mesh = cluster.mesh()
        self.roles = Roles(graph)
        self.asked = Structures(graph, cluster, options, self.roles)
        if options.offload:
            host_of(cluster)
            require_state(graph, options)
        self.global_batch = global_batch
        self.problems = problems or self._problems(offload=False)
        self.part, self.restarted = part, Restart()
        self._leanest: list[Candidate] = []
        self._host_needs: int | None = None
        self._watch = watch
        self.search = self._best(self.problems, self.started)

    def _problems(self, *, offload: bool, cluster: Cluster | None = None) -> LayoutProblems:
        cluster = cluster or self.cluster
        return LayoutProblems(
            self.graph, NetworkModel(cluster, self.calibration), ComputeModel(cluster.device, self.calibration),
            global_batch=self.global_batch, optimizer=self.options.optimizer, pins=self.asked.pins, offload=offload,
            sizes=sizes_of(self.options.bucket_bytes, self.cluster, self.calibration),
            schedules=self.options.schedules,
        )  # fmt: skip

    def _best(self, problems: LayoutProblems, begun: float, part: str = "") -> Best:
        """A search; where optimizer state may be on the host, there are two, which share the time."""
        share = 0.5 if self.options.offload else 1.0
        watch, part = self._watch, part or self.part
        report = None if watch is None else lambda best: watch.tell(part, best)
        return Best(problems, self.options, self.limit, begun + share * self.options.time_limit_s, report)

    def feasible(self) -> bool:
        """Whether the leanest strategy fits."""
        lean = self.leanest(enough=self.limit)
        return bool(lean) and lean[0].costs.memory_bytes_per_device <= self.limit

    def found(self, known: Candidate | None = None, start: Strategy | None = None) -> tuple[Plan, Candidate]:
        """The plan and its strategy, which is no slower than ``known``, one that fits, and than ``start``, where that is in
        the space."""
        tally = Tally()
        self.restarted = self._restarted(start)
        known = min(
            (each for each in (known, self.restarted.candidate) if each is not None),
            key=_step_s,
            default=None,
        )
        with Offered(self.baselines(), self.started, known, self.search, BASELINES_LEAVE) as offered:
            if not self._begins_at_once:
                offered.all()
            self.search.enough_s = self._least_work.enough_s
            if self._begins_at_once:
                winner = self._searched(tally, known, offered)
            elif self.options.offload:
                winner = self._offloaded(tally, offered.best())
            else:
                winner = self._searched(tally, offered.best())
            baselines, best = offered.all(needed=False), offered.best()
        if best is not None and best.costs.step_time_s <= NEARLY * winner.costs.step_time_s:
            winner = min(winner, self.search.with_messages(best), key=_step_s)
        proved_s = min(tally.bounds, default=-INFINITE)
        enough = winner.costs.step_time_s <= self.search.enough_s
        document = plan_document(
            self.graph, self.cluster, self.calibration, self.options, self._limit_of(winner.costs),
            (winner.strategy, winner.costs), baselines,
            max(self._least_work.seconds, proved_s if self._bounds else -INFINITE), tally.evaluations, self.restarted.reason,
            ended_early=self.kind().relaxes and tally.cut and not enough,
        )  # fmt: skip
        return Plan(document, time.monotonic() - self.started), winner

    @property
    def _bounds(self) -> bool:
        """Whether search charges no more than strategies cost. Parameters that are gathered for each use, or pinned apart from
        it, share messages that it does not know."""
        return self.options.storage != USE and self.asked.pins.are_stored_as_used

    def baselines(self) -> Baselines:
        """Those that are asked for, by a search of their own."""
        search = self._best(self.problems, self.started, BASELINES)
        search.share_costs(self.search)
        search.largest_bounds = not self._is_apart
        return Baselines(search, self.options, self.asked, self.roles, self.mesh, self._fills)

    @property
    def _begins_at_once(self) -> bool:
        """Whether one search looks at all that is searched, so that baselines can be costed beside it."""
        kind = self.kind()
        simple = not self.options.offload and not self.cluster.groups and not self._is_apart
        return simple and kind.relaxes and not kind.pinned

    def _limit_of(self, costs: Costs) -> int:
        """The limit of the fullest device; stages may have devices of their own."""
        return costs.limit_bytes(self.options.memory_limit_bytes or MAX_BYTES) if costs.stages else self.limit

    def _offloaded(self, tally: Tally, start: Candidate | None) -> Candidate:
        """The best strategy with the optimizer's state on devices, or on the hosts where that is quicker or alone fits."""
        with suppress(InfeasibleError):
            start = self._searched(tally, start)
        self.problems, enough_s = self._problems(offload=True), self.search.enough_s
        self.search = self._best(self.problems, time.monotonic())
        self.search.enough_s = enough_s
        self.search.extend(0.0, self.started)
        return self._searched(tally, start)

    def _searched(self, tally: Tally, start: Candidate | None, offered: Offered | None = None) -> Candidate:
        """The best strategy. Search, which adds memory up by op, may find none where the leanest one just fits."""
        structures, kind = self.structures(), self.kind()
        if self.cluster.groups:
            return self._grouped(structures, kind, tally, start)
        try:
            return self._over(structures, kind, tally, start, offered)
        except InfeasibleError as error:
            if error.constraint == "global_batch" and self.options.stage_of:
                text = ", ".join(f"{name}={stage}" for name, stage in self.options.stage_of.items())
                raise InfeasibleError("stage_of", text, None, "no cuts hold these ops to their stages") from None
            if error.constraint != "memory_limit_bytes" or not kind.relaxes:
                raise
            lean = self._lean(self.problems, share=LEAN_SHARE)
            self._leanest = sorted([*self._leanest, *lean], key=_by_memory)
            if not self._leanest and self._host_needs is None:
                raise
            if not lean or lean[0].costs.memory_bytes_per_device > self.limit:
                raise self._does_not_fit() from None
        fitting = [each for each in lean if each.costs.memory_bytes_per_device <= self.limit]
        return self._over(structures, kind, tally, min(fitting, key=lambda each: each.costs.step_time_s))

    @property
    def _is_apart(self) -> bool:
        """Whether microbatches are searched one by one."""
        return bool(self.problems.compute.measured) or not self._least_work.in_proportion

    def _over(
        self,
        structures: Sequence[Structure],
        kind: Kind,
        tally: Tally,
        start: Candidate | None,
        offered: Offered | None = None,
    ) -> Candidate:
        """The best strategy of these structures. Where ops were timed, or do not work in proportion to samples, a smaller
        microbatch may take less of a sample than a larger one, which so bounds none but itself: each is searched by itself."""
        search, options = self.search, self.search.options
        own = {each.stages: search.micro_batches(each.stages) for each in structures}
        sizes = sorted({size for each in own.values() for size in each}, reverse=True)
        if not self._is_apart or not kind.relaxes or len(sizes) < 2:
            return search.over(structures, kind, tally, start, offered)
        problem: InfeasibleError | None = None
        for size in sizes:
            search.options = replace(options, micro_batch=size)
            fills = [each for each in structures if size in own[each.stages] or self.global_batch >= size * each.stages]
            try:
                start = search.over(fills, kind, tally, start)
            except InfeasibleError as error:
                problem = nearer(problem, error)
            finally:
                search.options = options
        if start is None:
            assert problem is not None
            raise problem
        return start

    def _grouped(self, structures: Sequence[Structure], kind: Kind, tally: Tally, start: Candidate | None) -> Candidate:
        """The best strategy of all devices at once, which go at the pace of the slowest, or of stages on the groups."""
        single = [structure for structure in structures if structure.stages == 1]
        piped = [structure for structure in structures if structure.stages > 1]
        problem: InfeasibleError | None = None
        if single or not piped or not kind.relaxes:
            try:
                start = self.search.over(single if kind.relaxes else structures, kind, tally, start)
            except InfeasibleError as error:
                problem = error
        if piped and kind.relaxes:
            offload = self.problems.offload

            def of(cluster: Cluster) -> LayoutProblems:
                return self._problems(offload=offload, cluster=cluster)

            deadline = max(self.search.deadline, time.monotonic() + 0.5 * self.options.time_limit_s)
            search = GroupSearch(self.cluster, self.problems, of, self.options, deadline, self.search.report)
            search.extend(0.0, self.started)
            search.enough_s = self.search.enough_s
            try:
                return search.over(piped, kind, tally, start)
            except InfeasibleError as error:
                problem = error if problem is None else nearer(problem, error)
        if start is None:
            raise problem or InfeasibleError("global_batch", self.global_batch, None, "no microbatch splits evenly")
        return start

    def leanest(self, enough: int = 0, share: float = 1.0) -> list[Candidate]:
        """Strategies of little memory, see ``Leanest``, looked for as long as a share of the time limit; with the optimizer's
        state on the hosts, where they have room for it, and without."""
        if not self.options.offload:
            return self._lean(self.problems, enough, share)
        found = self._lean(self._problems(offload=True), enough, share / 2)
        if not found or found[0].costs.memory_bytes_per_device > enough:
            found += self._lean(self._problems(offload=False), enough, share / 2)
        return sorted(found, key=_by_memory)

    def _lean(self, problems: LayoutProblems, enough: int = 0, share: float = 1.0) -> list[Candidate]:
        deadline = time.monotonic() + share * self.options.time_limit_s
        found = Leanest(problems, self.options, 0, deadline, None).over(self.structures(), self.kind(), enough)
        self._note_host(each for each in found if not self.search.host_has_room(each.strategy))
        return [each for each in found if self.search.host_has_room(each.strategy)]

    def _note_host(self, refused: Iterable[Candidate]) -> None:
        """The least that hosts would have to hold for a strategy that fits on the devices."""
        for each in refused:
            if each.costs.memory_bytes_per_device <= self.limit:
                needed = self.search.host_needs(each.strategy)
                self._host_needs = needed if self._host_needs is None else min(self._host_needs, needed)

    def _does_not_fit(self) -> InfeasibleError:
        """Of devices, or of their hosts where these have too little room for what would fit on devices."""
        lean = self._leanest[:1]
        error = InfeasibleError("memory_limit_bytes", self.limit, None)
        if self._host_needs is None:
            return with_need(error, lean)
        detail = "that is a device's part of its host, which has to hold what is offloaded"
        if lean:
            detail += f"; without it a device takes {lean[0].costs.memory_bytes_per_device} bytes of {self.limit}"
        limit = host_of(self.cluster).memory_bytes
        return InfeasibleError("host.memory_bytes", limit, self._host_needs, detail, found=True)

    def kind(self) -> Kind:
        """Pinned parameters say themselves how they are stored."""
        pins = self.asked.pins
        if pins:
            return Kind(self.options.searcher, (AS_USED,), pinned=not pins.are_stored_as_used)
        if self.options.storage is not None:
            return Kind(self.options.searcher, (self.options.storage,))
        return Kind(self.options.searcher)

    def structures(self) -> list[Structure]:
        """Those that are searched."""
        return self.asked.all(self._fills)

    @cached_property
    def _least_work(self) -> LeastWork:
        """Of all microbatches that may be run, of any number of stages."""
        sizes = {size for each in self.structures() for size in self.search.micro_batches(each.stages)}
        return LeastWork(
            self.problems.bound, sorted(sizes, reverse=True) or [self.global_batch],
            self.global_batch, self.cluster, self.calibration, self.options,
        )  # fmt: skip

    def _fills(self, stages: int) -> bool:
        """Whether the model's blocks, and the batch, fill so many stages."""
        return stages <= self.problems.most_stages and bool(self.search.micro_batches(stages))

    def _restarted(self, earlier: Strategy | None) -> Restart:
        """The strategy of an earlier plan, costed here, where it is as asked for and fits in memory."""
        if earlier is None:
            return Restart()
        found = restarted(earlier, self.problems, self.cluster, self.options)
        if found.candidate is None:
            return found
        limit, needed = self._limit_of(found.candidate.costs), found.candidate.costs.memory_bytes_per_device
        if needed > limit or not self.search.host_has_room(found.candidate.strategy):
            return Restart(reason=f"it takes {needed} bytes on a device, at most {limit} are allowed")
        return found
