"""Search for a plan's synchronization strategy: a builder, or ``auto``, the fastest one in the simulated step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autosbp.cluster.spec import Cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.pipeline_cost import pipelined_step_s
from autosbp.costmodel.step_events import Timeline
from autosbp.costmodel.strategy_cost import evaluate, simulate_phases
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.precision import in_precision
from autosbp.plan.plan import Plan, Strategy, plan_id_of
from autosbp.plan.synchronizers import MAX_INDEX, ParameterSync
from autosbp.plan.throughput import at_step_time
from autosbp.search.sync_builders import BUILDERS, CHUNKED, builder_named, variables, with_sync

AUTO = "auto"
CHUNKS = (1, 8, 32, 128)
"""Numbers of adjacent variables per message that ``auto`` tries."""
MOST_PARAMETERS = 24
"""Number of the largest parameters whose synchronizer ``auto`` improves one by one."""


class SyncSearch:
    """Simulates the step of one plan's strategy under other synchronization strategies.

    Args:
        graph: the graph in the plan's precision, with a symbolic batch.
    """

    def __init__(
        self, graph: LogicalGraph, strategy: Strategy, cluster: Cluster, calibration: Calibration | None
    ) -> None:
        self.graph, self.strategy, self.cluster = graph, strategy, cluster
        self.bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
        self.compute = ComputeModel(cluster.device, calibration)
        network = NetworkModel(cluster, calibration)
        self.boxing = BoxingModel(network, strategy.mesh, self.compute.copy_bytes_per_s)
        self.evaluations = 0

    def step_s(self, strategy: Strategy) -> float:
        """Simulated step time in seconds of a strategy on the plan's mesh."""
        self.evaluations += 1
        if strategy.pipeline is not None:
            return pipelined_step_s(self.bound, strategy, self.boxing, self.compute)
        phases = Timeline(self.bound, strategy, self.boxing, self.compute).phases()
        return simulate_phases(phases, self.compute).seconds

    def built(self) -> Iterator[tuple[str, Strategy]]:
        """The plan's default buckets, and every builder with every number of variables per message."""
        yield "default", replace(self.strategy, sync=None)
        count = len(variables(self.graph, self.strategy))
        for name in BUILDERS:
            chunks = sorted({min(chunk, max(count, 1)) for chunk in CHUNKS}) if name in CHUNKED else [None]
            for chunk in chunks:
                label = name if chunk is None else f"{name} {chunk}"
                yield label, with_sync(self.graph, self.strategy, self.cluster, name, chunk)

    def best(self) -> Strategy:
        """The strategy of the fastest builder, improved one parameter at a time with the choices of other builders."""
        built = [strategy for _, strategy in self.built()]
        seconds = [self.step_s(strategy) for strategy in built]
        least_s = min(seconds)
        best = built[seconds.index(least_s)]
        if best.sync is None:
            return best
        sizes = {each.name: each.num_bytes for each in variables(self.graph, self.strategy)}
        largest = sorted(sizes, key=lambda name: -sizes[name])[:MOST_PARAMETERS]
        for place, name in enumerate(largest):
            for option in _options(name, built, place):
                assert best.sync is not None
                parameters = {**best.sync.parameters, name: option}
                changed = replace(best, sync=replace(best.sync, parameters=parameters))
                seconds_now = self.step_s(changed)
                if seconds_now < least_s:
                    least_s, best = seconds_now, changed
        return best


def _options(name: str, built: list[Strategy], place: int) -> list[ParameterSync]:
    """The choices of all builders for one parameter, in separate messages; labels are distinct by ``place``."""
    found: dict[ParameterSync, None] = {}
    for strategy in built:
        sync = None if strategy.sync is None else strategy.sync.parameters.get(name)
        if sync is not None:
            first = MAX_INDEX // 2 + place * 1024
            served = len(set(sync.groups)) == 1
            labels = tuple(first + (0 if served else at) for at in range(sync.num_shards))
            found[replace(sync, groups=labels)] = None
    return list(found)


def check_builder(name: str | None, chunk: int | None) -> None:
    """Raise ``InputError`` for an unknown builder, or a chunk that it does not take, before a plan is searched."""
    if name == AUTO and chunk is not None:
        raise InputError("chunk", chunk, f"{AUTO} chooses it")
    if name not in (None, AUTO):
        builder_named(str(name), chunk)


def with_builder(
    plan: Plan,
    graph: LogicalGraph,
    calibration: Calibration | None,
    name: str,
    chunk: int | None = None,
) -> Plan:
    """The plan with a builder's synchronization strategy, or that of ``auto``, and its predicted costs.

    Args:
        graph: the plan's captured graph.
        chunk: number of adjacent variables per message; None for the builder's default.

    Raises:
        InputError: the builder is unknown or takes no chunk, or the plan has no replicas.
    """
    precise = in_precision(graph, plan.precision)
    search = SyncSearch(precise, plan.strategy, plan.cluster, calibration)
    check_builder(name, chunk)
    strategy = search.best() if name == AUTO else with_sync(precise, plan.strategy, plan.cluster, name, chunk)
    if strategy.sync is not None and not strategy.sync.parameters:
        raise InputError("builder", name, "this plan replicates no parameter whose gradient it could synchronize")
    costs = evaluate(search.bound, strategy, search.boxing, search.compute)
    document = {
        **plan.document,
        **costs.to_dict(),
        **at_step_time(plan.document, costs.step_time_s),
        "strategy": strategy.to_dict(),
        "searcher": f"builder {name}" + ("" if chunk is None else f" {chunk}"),
        "lower_bound_s": None,
        "gap": None,
        "evaluations": plan.document["evaluations"] + search.evaluations,
    }
    if not costs.stages:
        document.pop("by_stage", None)
    return Plan({**document, "plan_id": plan_id_of(document)}, plan.search_s)
