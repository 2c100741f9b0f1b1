"""Synchronizers in the simulated step: hot spots, overlap, stale messages, compressors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autosbp.api import LogicalGraph, PlanOptions, capture, load_cluster, make_plan, predict_costs
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.overlap import Overlap
from autosbp.costmodel.step_event import Event
from autosbp.costmodel.step_simulator import Simulation, simulate_duration_s
from autosbp.costmodel.synchronizer_cost import SynchronizerCost
from autosbp.plan.plan import Strategy
from autosbp.plan.synchronizers import FP16, PARAMETER_SERVER, TOP_K, Compressor, ParameterSync, SyncStrategy
from autosbp.program.parameter_flow import parameter_flow
from autosbp.search.sync_builders import with_sync

CLUSTER = load_cluster("emulated:2x2")
FLAT = load_cluster("emulated:4x1")


@pytest.fixture(scope="module")
def graph() -> LogicalGraph:
    return capture("zoo:mlp-small")


def data_parallel(graph: LogicalGraph, cluster: object = CLUSTER) -> Strategy:
    options = PlanOptions(global_batch=16, stages=1, baselines=("data_parallel",))
    return make_plan(graph, cluster, None, options).baseline_strategy("data_parallel")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def strategy(graph: LogicalGraph) -> Strategy:
    return data_parallel(graph)


def step_s(graph: LogicalGraph, strategy: Strategy, sync: ParameterSync, cluster: object = CLUSTER) -> float:
    configured = replace(strategy, sync=SyncStrategy(4, dict.fromkeys(strategy.parameters, sync)))
    return predict_costs(graph, configured, cluster).step_time_s  # type: ignore[arg-type]


def comm_s(graph: LogicalGraph, strategy: Strategy, cluster: object = CLUSTER) -> float:
    """Seconds of the P2P messages of all reductions, if they ran alone."""
    compute = ComputeModel(cluster.device)  # type: ignore[attr-defined]
    boxing = BoxingModel(NetworkModel(cluster), strategy.mesh, compute.copy_bytes_per_s)  # type: ignore[arg-type]
    bound = graph.bind(batch=16)
    cost = SynchronizerCost(bound, strategy, boxing, compute)
    events = [event for bucket in parameter_flow(bound, strategy).buckets for event in cost.reduction(bucket)]
    return sum(event.duration_s for event in events if event.category == "comm")


def test_one_server_takes_the_messages_of_all_other_nodes_over_its_link(graph: LogicalGraph) -> None:
    flat = data_parallel(graph, FLAT)
    total = sum(leaf.meta.num_bytes for leaf in graph.trained)
    link = FLAT.levels[0]
    found = comm_s(graph, with_sync(graph, flat, FLAT, "ps", 128), FLAT)
    assert found == pytest.approx(3 * (link.latency_s + total / link.bandwidth_bytes_per_s))


def test_balanced_servers_take_less_than_a_hot_spot(graph: LogicalGraph) -> None:
    flat = data_parallel(graph, FLAT)
    one, many = (comm_s(graph, with_sync(graph, flat, FLAT, name, 128), FLAT) for name in ("ps", "ps_partitioned"))
    assert many < 0.5 * one
    assert predict_costs(graph, with_sync(graph, flat, FLAT, "ps_partitioned", 128), FLAT).step_time_s < (
        predict_costs(graph, with_sync(graph, flat, FLAT, "ps", 128), FLAT).step_time_s
    )


def test_a_transfer_station_sends_each_nodes_sum_once(graph: LogicalGraph, strategy: Strategy) -> None:
    direct, through = (
        comm_s(graph, with_sync(graph, strategy, CLUSTER, name, 128)) for name in ("ps_partitioned", "ps_hierarchical")
    )
    assert through < 0.65 * direct


def test_stale_messages_hide_behind_the_next_step(graph: LogicalGraph, strategy: Strategy) -> None:
    sync = ParameterSync(PARAMETER_SERVER, destinations=(0,))
    assert step_s(graph, strategy, replace(sync, staleness=1)) < step_s(graph, strategy, sync)


def test_a_compressor_pays_where_links_are_slow_and_costs_where_they_are_not(
    graph: LogicalGraph, strategy: Strategy
) -> None:
    plain, half, top = (
        ParameterSync(compressor=None if name is None else Compressor(name)) for name in (None, FP16, TOP_K)
    )
    assert step_s(graph, strategy, top) < step_s(graph, strategy, half) < step_s(graph, strategy, plain)
    fast = load_cluster("local:1x4")
    near = data_parallel(graph, fast)
    assert step_s(graph, near, top, fast) > step_s(graph, near, plain, fast)


def test_servers_share_the_optimizer_state(graph: LogicalGraph, strategy: Strategy) -> None:
    whole, hot, shared = (
        predict_costs(graph, with_sync(graph, strategy, CLUSTER, name), CLUSTER).memory["optimizer"]
        for name in ("all_reduce", "ps", "ps_balanced")
    )
    assert hot == whole and whole / 4 <= shared < whole / 2


def test_work_of_the_communication_thread_is_hidden_behind_ops_and_shares_links() -> None:
    def event(name: str, category: str, seconds: float, queue: object = None, key: object = None) -> Event:
        return Event(name, category, "backward", seconds, level=0, queue=queue, key=key)

    op = event("op", "compute", 3.0)
    aside = [event("encode", "compute", 1.0, "thread", "a"), event("push", "comm", 1.0, "thread", "b")]
    assert simulate_duration_s([*aside, op], Overlap()) == pytest.approx(3.0)
    assert simulate_duration_s([op, *aside], Overlap()) == pytest.approx(5.0)
    both = [event("push", "comm", 1.0, "thread", "a"), event("all_reduce", "comm", 1.0, None, "b")]
    assert simulate_duration_s(both, Overlap()) == pytest.approx(2.0)
    simulation = Simulation(Overlap())
    simulation.run([*both, Event("wait", "wait", "sync", 0.0, after=("a", "b"))])
    assert simulation.now_s == pytest.approx(2.0)
