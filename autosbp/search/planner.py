"""``make_plan``: the whole way from a graph and a cluster to a plan with its certificate and baselines.

For each mesh view a problem is built and searched; the best strategy over all views wins, and the least of their lower
bounds is the bound. The number of microbatches is the smallest power-of-two-like divisor with a feasible strategy, then
larger ones while they are better.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autosbp import __version__
from autosbp.cluster import Cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.evaluate import evaluate
from autosbp.costmodel.network import NetworkModel
from autosbp.errors import InfeasibleError, InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.jsonio import Fields, check_integer
from autosbp.plan import SCHEMA, Baseline, Costs, Plan, Strategy, plan_id_of
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.rules import check_graph
from autosbp.search import SEARCHERS, SearchOptions, SearchResult
from autosbp.search._baselines import Roles
from autosbp.search._build import Allowed, ProblemBuilder
from autosbp.search._clusters import OpCluster, form_clusters
from autosbp.search._strategy import strategy_of
from autosbp.search._views import mesh_views, tensor_parallel_view

MAX_BATCH = 2**30
Progress = Callable[[str, float], bool]


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a plan is asked for. Batches are samples over all devices; None lets the planner choose."""

    global_batch: int | None = None
    micro_batch: int | None = None
    searcher: str = "auto"
    seed: int = 0
    time_limit_s: float = 60.0
    optimizer: str = "adamw"
    memory_limit_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.searcher not in SEARCHERS:
            raise InputError("searcher", self.searcher, f"one of {', '.join(SEARCHERS)} is expected")
        if self.optimizer not in ("adamw", "sgd"):
            raise InputError("optimizer", self.optimizer, "adamw or sgd is expected")
        check_integer("seed", self.seed, 0, 2**63 - 1)
        if isinstance(self.time_limit_s, bool) or not 0 < self.time_limit_s <= 86_400:
            raise InputError("time_limit_s", self.time_limit_s, "more than 0 and at most 86400 seconds is expected")
        for name in ("global_batch", "micro_batch"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, MAX_BATCH)
        if self.memory_limit_bytes is not None:
            check_integer("memory_limit_bytes", self.memory_limit_bytes, 1, 2**53)
        if self.global_batch is not None and self.micro_batch is not None and self.global_batch % self.micro_batch:
            raise InputError("micro_batch", self.micro_batch, f"a divisor of the global batch {self.global_batch} is expected")

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @staticmethod
    def from_dict(data: object) -> PlanOptions:
        fields = Fields(data, "options", PlanOptions.__slots__)
        return PlanOptions(**dict(fields.data))


@dataclass(frozen=True)
class _Candidate:
    strategy: Strategy
    costs: Costs
    result: SearchResult


@dataclass
class _Tally:
    """What the searches of one plan add up to."""

    evaluations: int = 0
    bounds: list[float] = field(default_factory=list)
    trace: list[tuple[float, float]] = field(default_factory=list)


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
        self._boxing: dict[Mesh, BoxingModel] = {}
        self._bound: dict[int, tuple[LogicalGraph, list[OpCluster]]] = {}

    def run(self) -> Plan:
        baselines = self._baselines()
        tally = _Tally()
        winner = self._search_space(tally, baselines)
        return Plan(self._document(winner, baselines, tally))

    def _micro_batches(self) -> list[int]:
        """Microbatch sizes to try, largest first: the one asked for, or divisors about a factor of two apart."""
        if self.options.micro_batch is not None:
            return [self.options.micro_batch]
        sizes: list[int] = []
        for count in range(1, self.global_batch + 1):
            if self.global_batch % count == 0 and (not sizes or sizes[-1] >= 2 * (self.global_batch // count)):
                sizes.append(self.global_batch // count)
        return sizes

    def _bound_graph(self, micro_batch: int) -> tuple[LogicalGraph, list[OpCluster]]:
        if micro_batch not in self._bound:
            bound = self.graph.bind(**{symbol: micro_batch for symbol in self.graph.symbols})
            self._bound[micro_batch] = bound, form_clusters(bound)
        return self._bound[micro_batch]

    def _boxing_model(self, view: Mesh) -> BoxingModel:
        if view not in self._boxing:
            self._boxing[view] = BoxingModel(self.network, view, self.compute.copy_bytes_per_s)
        return self._boxing[view]

    def _solve(
        self, view: Mesh, micro_batch: int, searcher: str, tally: _Tally, allowed: Allowed | None = None
    ) -> _Candidate:
        """The best strategy on one view at one microbatch; raises ``InfeasibleError``."""
        graph, clusters = self._bound_graph(micro_batch)
        boxing = self._boxing_model(view)
        builder = ProblemBuilder(
            graph, boxing, self.compute, num_micro=self.global_batch // micro_batch,
            optimizer=self.options.optimizer, clusters=clusters,
        )  # fmt: skip
        built = builder.build(self.limit, allowed)
        if any(len(costs) == 0 for costs in built.problem.unary_s):
            raise InfeasibleError("batch", micro_batch, None, f"no even split over {view.shape} exists")
        options = SearchOptions(
            seed=self.options.seed, time_limit_s=self.options.time_limit_s, progress=self._report(tally)
        )
        result = SEARCHERS[searcher](built.problem, options)
        tally.evaluations += result.evaluations
        strategy = strategy_of(
            built, result.assignment, graph, boxing,
            global_batch=self.global_batch, micro_batch=micro_batch, optimizer=self.options.optimizer,
        )  # fmt: skip
        return _Candidate(strategy, evaluate(graph, strategy, boxing, self.compute), result)

    def _report(self, tally: _Tally) -> Callable[[float, float], bool] | None:
        if self.progress is None:
            return None
        report = self.progress

        def forward(best: float, _: float) -> bool:
            if not tally.trace or best < tally.trace[-1][1]:
                tally.trace.append((time.monotonic() - self.started, best))
            return report("search", best)

        return forward

    def _search_space(self, tally: _Tally, baselines: list[Baseline]) -> _Candidate:
        best: _Candidate | None = None
        problem: InfeasibleError | None = None
        worse = 0
        for micro_batch in self._micro_batches():
            candidates: list[_Candidate] = []
            for view in mesh_views(self.mesh):
                try:
                    candidate = self._solve(view, micro_batch, self.options.searcher, tally)
                except InfeasibleError as error:
                    problem = _nearer(problem, error)
                    continue
                tally.bounds.append(candidate.result.lower_bound_s)
                candidates.append(candidate)
            if not candidates:
                continue
            fastest = min(candidates, key=lambda candidate: candidate.costs.step_time_s)
            worse = worse + 1 if best is not None and fastest.costs.step_time_s >= best.costs.step_time_s else 0
            if best is None or fastest.costs.step_time_s < best.costs.step_time_s:
                best = fastest
                tally.trace.append((time.monotonic() - self.started, best.costs.step_time_s))
            if worse >= 1:
                break
        if best is None:
            raise problem or InfeasibleError("global_batch", self.global_batch, None, "no microbatch splits evenly")
        return self._or_baseline(best, baselines)

    def _or_baseline(self, best: _Candidate, baselines: list[Baseline]) -> _Candidate:
        """A heuristic searcher may miss what a baseline has; a plan is never worse than its baselines."""
        for baseline in baselines:
            if baseline.costs and baseline.strategy and baseline.costs.step_time_s < best.costs.step_time_s:
                best = replace(best, strategy=baseline.strategy, costs=baseline.costs)
        return best

    def _baselines(self) -> list[Baseline]:
        data, tensor = self.roles.data_axis, self.roles.tensor_axis
        only_data = tensor_parallel_view(self.mesh, 0)
        grids = [tensor_parallel_view(self.mesh, count) for count in range(self.mesh.ndim + 1)]

        def rule(tensor_axes: frozenset[int]) -> Allowed:
            return lambda cluster, axis, option: (tensor if axis in tensor_axes else data)(cluster, option)

        return [
            self._baseline("data_parallel", [(only_data[0], rule(only_data[1]))]),
            self._baseline("megatron", [(view, rule(axes)) for view, axes in grids]),
        ]

    def _baseline(self, name: str, grids: Iterable[tuple[Mesh, Allowed]]) -> Baseline:
        tally = _Tally()
        best: _Candidate | None = None
        problem: InfeasibleError | None = None
        for view, allowed in grids:
            for micro_batch in self._micro_batches():
                try:
                    candidate = self._solve(view, micro_batch, "exact", tally, allowed)
                except InfeasibleError as error:
                    problem = _nearer(problem, error)
                    continue
                if best is None or candidate.costs.step_time_s < best.costs.step_time_s:
                    best = candidate
                break
        if best is None:
            return Baseline(name, None, None, False, str(problem))
        return Baseline(name, best.costs, best.strategy, True)

    def _document(self, winner: _Candidate, baselines: list[Baseline], tally: _Tally) -> Mapping[str, Any]:
        costs = winner.costs
        bound = min(min(tally.bounds, default=float("-inf")), costs.step_time_s)
        proved = bound > float("-inf")
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "model": self.graph.name,
            **costs.to_dict(),
            "memory_limit_bytes": self.limit,
            "lower_bound_s": bound if proved else None,
            "gap": _gap(costs.step_time_s, bound) if proved else None,
            "searcher": self.options.searcher,
            "evaluations": tally.evaluations,
            "baselines": {baseline.name: baseline.to_dict() for baseline in baselines},
            "strategy": winner.strategy.to_dict(),
            "baseline_strategies": {
                baseline.name: baseline.strategy.to_dict() for baseline in baselines if baseline.strategy is not None
            },
            "cluster": self.cluster.to_dict(),
            "options": self.options.to_dict(),
            "provenance": {
                "graph_hash": self.graph.graph_hash,
                "cluster_hash": self.cluster.cluster_hash,
                "calibration_id": self.calibration.calibration_id if self.calibration else None,
                "searcher": self.options.searcher,
                "seed": self.options.seed,
                "version": __version__,
            },
        }
        document["plan_id"] = plan_id_of(document)
        document["search_s"] = time.monotonic() - self.started
        return document


def _gap(cost: float, bound: float) -> float:
    gap = (cost - bound) / cost if cost > 0 else 0.0
    return 0.0 if gap < 1e-9 else gap  # the two are summed in different orders


def _nearer(known: InfeasibleError | None, new: InfeasibleError) -> InfeasibleError:
    """The more useful of two failures: memory before batch, then the one that needs less."""
    if known is None or (known.constraint == "batch" and new.constraint != "batch"):
        return new
    if new.constraint == known.constraint and new.needed is not None and (known.needed is None or new.needed < known.needed):
        return new
    return known
