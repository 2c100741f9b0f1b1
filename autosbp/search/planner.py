"""``make_plan``: the whole way from a graph and a cluster to a plan with its certificate and baselines.

With ``exact`` and ``auto``, each mesh view (``_views``) is first solved without the memory limit at the largest microbatch
that can fit. That bounds the view, smaller microbatches included: they pay the same work and bytes with more latencies.
Where the optimum fits in memory it is the view's answer. Views whose bound is below the best plan so far are then searched
under the memory limit, lowest bound first, at microbatches from one that leaves half of the memory free to the largest,
until the work or the time limit is spent. Searches add memory up by op; a strategy counts as one that fits when its peak
by ``costmodel.memory`` does. The plan's bound is the least over all views. Other searchers run on each view at
its largest microbatch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from autosbp.cluster import Cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.evaluate import evaluate
from autosbp.costmodel.network import NetworkModel
from autosbp.errors import InfeasibleError, InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Baseline, Costs, Plan, Strategy
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.rules import check_graph
from autosbp.search import SEARCHERS, SearchOptions, SearchResult
from autosbp.search._analysis import Analysis
from autosbp.search._baselines import Roles, recipe
from autosbp.search._build import Allowed, BuiltProblem, ProblemBuilder
from autosbp.search._document import plan_document
from autosbp.search._stored_apart import best_stored_apart
from autosbp.search._strategy import strategy_of
from autosbp.search._tied import tied
from autosbp.search._views import mesh_views
from autosbp.search.pinned import pinned_views, read_pins
from autosbp.search.plan_options import PlanOptions, require_room

MAX_EVALUATIONS = 100_000_000
ENOUGH_EVALUATIONS = 40_000_000
"""Costed values at which one exact search stops, and after which no further search under a binding memory limit begins.
Counts, unlike clocks, are the same on every machine, so plans are too."""

TIGHTENINGS = 4
"""Searches of one space, each under a lower limit, until what is found fits at its fullest moment."""

BASELINE_SHARE = 0.1
"""The part of a whole search that a baseline gets. Most are solved at once."""
BASELINE_GAP = 0.02
"""Where memory binds, what another tool would do is searched to this gap."""

Progress = Callable[[str, float], bool]
_SEARCHERS = {**SEARCHERS, "tied": tied}


@dataclass(frozen=True)
class _Candidate:
    strategy: Strategy
    costs: Costs


@dataclass(frozen=True)
class _Space:
    """One search: layouts on a view at a microbatch, all or those that a baseline allows."""

    view: Mesh
    micro_batch: int
    allowed: Allowed | None


@dataclass
class _Tally:
    """What the searches of one plan add up to. ``share`` is the part of a whole search that one of them may take."""

    share: float = 1.0
    evaluations: int = 0
    bounds: list[float] = field(default_factory=list)


def make_plan(
    graph: LogicalGraph,
    cluster: Cluster,
    calibration: Calibration | None = None,
    options: PlanOptions | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The best strategy for training ``graph`` on ``cluster``, with costs, bound, baselines and provenance.

    Args:
        graph: as captured, with its batch symbolic.
        cluster: all its devices are used.
        calibration: measured on this cluster; without one, costs come from the cluster's data sheet.
        options: see ``PlanOptions``; the global batch defaults to 8 samples a device.
        progress: called with (stage, best step time so far); planning stops when it returns False.

    Raises:
        InputError: for a batch that does not divide, or a calibration of another cluster.
        InfeasibleError: when no strategy fits in memory.
    """
    return _Planner(graph, cluster, calibration, options or PlanOptions(), progress).run()


class _Planner:
    def __init__(
        self,
        graph: LogicalGraph,
        cluster: Cluster,
        calibration: Calibration | None,
        options: PlanOptions,
        progress: Progress | None,
    ) -> None:
        check_graph(graph)
        summary = graph.summary()
        require_room(summary["num_parameters"], summary["parameter_bytes"], cluster, options)
        if calibration is not None and calibration.cluster.levels_key != cluster.levels_key:
            raise InputError("calibration", calibration.cluster.name, f"a calibration of {cluster.name} is expected")
        self.graph, self.cluster, self.calibration, self.options = graph, cluster, calibration, options
        self.progress = progress
        self.started = time.monotonic()
        self.network = NetworkModel(cluster, calibration)
        self.compute = ComputeModel(cluster.device, calibration)
        self.limit = options.memory_limit_bytes or cluster.device.memory_bytes
        self.global_batch = options.global_batch or 8 * cluster.num_devices
        if options.micro_batch is not None and self.global_batch % options.micro_batch:
            raise InputError("micro_batch", options.micro_batch, f"a divisor of the global batch {self.global_batch}")
        self.mesh = cluster.mesh()
        self.roles = Roles(graph)
        self.pins = read_pins(graph, self.mesh, self.options.pins)
        self._boxing: dict[Mesh, BoxingModel] = {}
        self._bound: dict[int, tuple[LogicalGraph, Analysis]] = {}
        self._builders: dict[tuple[Mesh, int], ProblemBuilder] = {}

    def run(self) -> Plan:
        baselines = self._baselines()
        tally = _Tally()
        winner = self._search_space(tally, baselines)
        document = plan_document(
            self.graph, self.cluster, self.calibration, self.options, self.limit,
            (winner.strategy, winner.costs), baselines, self._bound_of(tally, winner, baselines), tally.evaluations,
        )  # fmt: skip
        return Plan(document, time.monotonic() - self.started)

    def _bound_of(self, tally: _Tally, winner: _Candidate, baselines: list[Baseline]) -> float | None:
        """The least of all views; None where the winner is a baseline with storage apart, which is not searched."""
        apart = any(
            baseline.strategy is winner.strategy and recipe(baseline.name, self.mesh, self.roles).gather
            for baseline in baselines
        )
        least = min(tally.bounds, default=None)
        return None if apart and least is not None and winner.costs.step_time_s < least else least

    def _micro_batches(self) -> list[int]:
        """Microbatch sizes to try, largest first: the one asked for, or divisors about a factor of two apart."""
        if self.options.micro_batch is not None:
            return [self.options.micro_batch]
        sizes: list[int] = []
        for count in range(1, self.global_batch + 1):
            if self.global_batch % count == 0 and (not sizes or sizes[-1] >= 2 * (self.global_batch // count)):
                sizes.append(self.global_batch // count)
        return sizes

    def _bound_graph(self, micro_batch: int) -> tuple[LogicalGraph, Analysis]:
        if micro_batch not in self._bound:
            bound = self.graph.bind(**dict.fromkeys(self.graph.symbols, micro_batch))
            self._bound[micro_batch] = bound, Analysis(bound, self.pins.names, frozenset(self.pins.stored))
        return self._bound[micro_batch]

    def _boxing_model(self, view: Mesh) -> BoxingModel:
        if view not in self._boxing:
            self._boxing[view] = BoxingModel(self.network, view, self.compute.copy_bytes_per_s)
        return self._boxing[view]

    def _builder(self, view: Mesh, micro_batch: int) -> ProblemBuilder:
        key = (view, micro_batch)
        if key not in self._builders:
            graph, analysis = self._bound_graph(micro_batch)
            self._builders[key] = ProblemBuilder(
                graph, self._boxing_model(view), self.compute, num_micro=self.global_batch // micro_batch,
                optimizer=self.options.optimizer, analysis=analysis,
            )  # fmt: skip
        return self._builders[key]

    def _roomy_first(self, view: Mesh, allowed: Allowed | None, first: int) -> list[int]:
        """Microbatches that can fit, beginning with one that leaves room to choose, then larger, then smaller ones."""
        sizes = self._micro_batches()
        try:
            roomy = self._first_micro_batch(view, allowed, self.limit // 2)
        except InfeasibleError:
            roomy = first
        return [*reversed(sizes[first : roomy + 1]), *sizes[roomy + 1 :]]

    def _first_micro_batch(self, view: Mesh, allowed: Allowed | None, limit: int) -> int:
        """Index of the largest microbatch that could fit in ``limit``, by bisection: memory falls and even splits get
        fewer with the microbatch. Raises ``InfeasibleError`` when none could."""
        sizes = self._micro_batches()
        low, high, first = 0, len(sizes) - 1, -1
        problem: InfeasibleError | None = None
        while low <= high:
            middle = (low + high) // 2
            try:
                least = self._builder(view, sizes[middle]).least_memory(allowed)
            except InfeasibleError as error:
                problem, high = _nearer(problem, error), middle - 1
                continue
            if least > limit:
                detail = f"even the least memory of every op does not fit at a microbatch of {sizes[middle]}"
                problem = _nearer(problem, InfeasibleError("memory_limit_bytes", limit, least, detail))
                low = middle + 1
            else:
                first, high = middle, middle - 1
        if first < 0:
            raise problem or InfeasibleError("global_batch", self.global_batch, None, "no microbatch splits evenly")
        return first

    def _candidate(self, space: _Space, built: BuiltProblem, result: SearchResult) -> _Candidate:
        graph, _ = self._bound_graph(space.micro_batch)
        boxing = self._boxing_model(space.view)
        strategy = strategy_of(
            built, result.assignment, graph, boxing,
            global_batch=self.global_batch, micro_batch=space.micro_batch, optimizer=self.options.optimizer,
        )  # fmt: skip
        return _Candidate(strategy, evaluate(graph, strategy, boxing, self.compute))

    def _search_options(self, share: float, cutoff_s: float) -> SearchOptions:
        return SearchOptions(
            seed=self.options.seed,
            time_limit_s=self._remaining_s(),
            gap_tolerance=max(self.options.gap_tolerance, BASELINE_GAP if share < 1.0 else 0.0),
            cutoff_s=cutoff_s,
            max_evaluations=round(share * MAX_EVALUATIONS) if self.options.searcher in ("auto", "exact") else None,
            progress=self._report(),
        )

    def _relaxed(self, space: _Space, searcher: str, tally: _Tally, cutoff_s: float) -> tuple[float, _Candidate | None]:
        """A bound on the space, and its optimum where that fits in memory."""
        built = self._builder(space.view, space.micro_batch).build(self.limit, space.allowed)
        problem = replace(built.problem, memory_limit_bytes=None)
        result = _SEARCHERS[searcher](problem, self._search_options(tally.share, cutoff_s))
        tally.evaluations += result.evaluations
        if result.memory_bytes > self.limit:
            return result.lower_bound_s, None
        candidate = self._candidate(space, built, result)
        fits = candidate.costs.memory_bytes_per_device <= self.limit
        return result.lower_bound_s, candidate if fits else None

    def _limited(self, space: _Space, searcher: str, tally: _Tally, cutoff_s: float) -> tuple[float, _Candidate | None]:
        """A bound and the best strategy found under the memory limit; raises ``InfeasibleError``.

        Search adds memory up by op. What the strategy takes at its fullest moment is known once it is there: where that
        exceeds the limit, search begins anew with twice as much less, so that it is seldom repeated."""
        limit, bound, needed = self.limit, None, 0
        for _ in range(TIGHTENINGS):
            try:
                built = self._builder(space.view, space.micro_batch).build(limit, space.allowed)
                result = _SEARCHERS[searcher](built.problem, self._search_options(tally.share, cutoff_s))
            except InfeasibleError:
                if limit == self.limit:
                    raise
                break
            tally.evaluations += result.evaluations
            bound = result.lower_bound_s if bound is None else bound
            candidate = self._candidate(space, built, result)
            needed = candidate.costs.memory_bytes_per_device
            if needed <= self.limit:
                return bound, candidate
            if self._out_of_time() and cutoff_s < float("inf"):
                break
            limit = min(limit, result.memory_bytes) - 2 * (needed - self.limit)
        detail = f"what search found at a microbatch of {space.micro_batch} takes more at its fullest moment"
        raise InfeasibleError("memory_limit_bytes", self.limit, needed, detail)

    def _remaining_s(self) -> float:
        """What is left of the time limit for one more search; a little, always, so that there is an answer."""
        return max(self.options.time_limit_s - (time.monotonic() - self.started), 0.1 * self.options.time_limit_s)

    def _report(self) -> Callable[[float, float], bool] | None:
        if self.progress is None:
            return None
        report = self.progress

        def forward(best: float, _: float) -> bool:
            return report("search", best)

        return forward

    def _search_space(self, tally: _Tally, baselines: list[Baseline]) -> _Candidate:
        """The winner over all views, never worse than a baseline; with pins, over those on which they can be said."""
        if self.pins:
            views = pinned_views(self.pins, self.mesh, mesh_views(self.mesh))
            return self._best(views, self.options.searcher, tally, None)
        start = [
            _Candidate(baseline.strategy, baseline.costs)
            for baseline in baselines
            if baseline.strategy is not None and baseline.costs is not None
        ]
        best = min(start, key=lambda candidate: candidate.costs.step_time_s, default=None)
        return self._best([(view, None) for view in mesh_views(self.mesh)], self.options.searcher, tally, best)

    def _best(
        self, views: Sequence[tuple[Mesh, Allowed | None]], searcher: str, tally: _Tally, best: _Candidate | None
    ) -> _Candidate:
        """The best strategy over these views, at least as good as ``best``; raises ``InfeasibleError``."""
        problem: InfeasibleError | None = None
        sizes = self._micro_batches()
        relaxes = searcher in ("auto", "exact", "tied")
        open_views: list[tuple[float, int, Mesh, Allowed | None]] = []

        def keep(candidate: _Candidate | None) -> None:
            nonlocal best
            if candidate is not None and (best is None or candidate.costs.step_time_s < best.costs.step_time_s):
                best = candidate

        for view, allowed in views:
            try:
                first = self._first_micro_batch(view, allowed, self.limit)
                space = _Space(view, sizes[first], allowed)
                run = self._relaxed if relaxes else self._limited
                bound, candidate = run(space, searcher, tally, float("inf"))
            except InfeasibleError as error:
                problem = _nearer(problem, error)
                continue
            if candidate is not None:
                tally.bounds.append(bound)
                keep(candidate)
            else:
                open_views.append((bound, first, view, allowed))
        begun, tried = tally.evaluations, False
        for bound, first, view, allowed in sorted(open_views, key=lambda entry: entry[:2]):
            tally.bounds.append(bound)
            for micro_batch in self._roomy_first(view, allowed, first):
                cutoff = best.costs.step_time_s if best is not None else float("inf")
                spent = tally.evaluations - begun >= ENOUGH_EVALUATIONS or self._out_of_time()
                if bound >= cutoff or (best is not None and spent and tried):
                    break
                tried = True
                try:
                    keep(self._limited(_Space(view, micro_batch, allowed), searcher, tally, cutoff)[1])
                except InfeasibleError as error:
                    problem = _nearer(problem, error)
                    continue
                if (allowed is not None and not self.pins) or (best is not None and best.costs.step_time_s >= cutoff):
                    break  # a baseline is taken where it first fits; else smaller steps of the same way help no more
        if best is None:
            raise problem or InfeasibleError("global_batch", self.global_batch, None, "no microbatch splits evenly")
        return best

    def _out_of_time(self) -> bool:
        return time.monotonic() - self.started >= self.options.time_limit_s

    def _baselines(self) -> list[Baseline]:
        return [self._baseline(name) for name in self.options.baselines]

    def _baseline(self, name: str) -> Baseline:
        found = recipe(name, self.mesh, self.roles)
        try:
            if found.gather:
                sizes = [self.global_batch] if found.whole_batch else self._micro_batches()
                strategy, costs = best_stored_apart(found, sizes, self.limit, self._unlimited, self.compute)
                return Baseline(name, costs, strategy, True)
            best = self._best(found.grids, found.searcher, _Tally(BASELINE_SHARE), None)
        except InfeasibleError as error:
            return Baseline(name, None, None, False, str(error))
        return Baseline(name, best.costs, best.strategy, True)

    def _unlimited(self, view: Mesh, allowed: Allowed, micro_batch: int) -> tuple[LogicalGraph, Strategy, BoxingModel]:
        """The fastest strategy of a baseline's view, without a memory limit."""
        built = self._builder(view, micro_batch).build(None, allowed)
        result = SEARCHERS["exact"](built.problem, self._search_options(BASELINE_SHARE, float("inf")))
        graph, boxing = self._bound_graph(micro_batch)[0], self._boxing_model(view)
        strategy = strategy_of(
            built, result.assignment, graph, boxing,
            global_batch=self.global_batch, micro_batch=micro_batch, optimizer=self.options.optimizer,
        )  # fmt: skip
        return graph, strategy, boxing


def _nearer(known: InfeasibleError | None, new: InfeasibleError) -> InfeasibleError:
    """The more useful of two failures: memory before batch, then the one that needs less."""
    if known is None or (known.constraint == "micro_batch" and new.constraint != "micro_batch"):
        return new
    if (
        new.constraint == known.constraint
        and new.needed is not None
        and (known.needed is None or new.needed < known.needed)
    ):
        return new
    return known
