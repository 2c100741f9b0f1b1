"""What the search finds for the zoo's models at their real sizes, with costs from data sheets."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod

import pytest

from autosbp.api import LogicalGraph, Plan, PlanOptions, capture, load_cluster, make_plan
from autosbp.cluster.hardware import presets
from autosbp.cluster.spec import Cluster
from autosbp.sbp.layout import B, S, Sbp, local_shape

pytestmark = pytest.mark.integration

ROOM = 120.0
"""Seconds that a search may take; a loaded machine must not change the answer."""


@cache
def graph_of(name: str) -> LogicalGraph:
    return capture(f"zoo:{name}")


@cache
def plan_of(name: str, cluster: str, batch: int) -> Plan:
    options = PlanOptions(global_batch=batch, time_limit_s=ROOM, stages=1, storage="as_used")
    return make_plan(graph_of(name), cluster_of(cluster), None, options)


def cluster_of(name: str) -> Cluster:
    """A preset; ``piz-daint`` with the peak of its network, so that layouts do not hang on a few per cent of a slow one."""
    cluster = load_cluster(name)
    if not name.startswith("piz-daint"):
        return cluster
    peak = presets()["clusters"]["piz-daint"]["links"]["n"]["peak_bytes_per_s"]
    return replace(cluster, levels=(replace(cluster.levels[0], bandwidth_bytes_per_s=peak),))


def layouts(name: str, plan: Plan, end: str, *, ndim: int) -> dict[str, set[Sbp]]:
    """The states, over all axes, of each parameter of so many dims whose name ends so."""
    return {
        leaf.name: set(plan.strategy.parameters[leaf.name])
        for leaf in graph_of(name).parameters
        if leaf.name.endswith(end) and len(leaf.meta.shape) == ndim
    }


def test_resnet50_is_data_parallel() -> None:
    plan = plan_of("resnet50", "piz-daint:4", 256)
    convolutions = layouts("resnet50", plan, ".weight", ndim=4)
    assert len(convolutions) == 53
    assert set().union(*convolutions.values()) == {B}
    parallel = plan.document["baselines"]["data_parallel"]["step_time_s"]
    assert 0.98 * parallel <= plan.document["step_time_s"] <= parallel


def test_vgg_splits_its_dense_layers_and_repeats_its_filters() -> None:
    """AutoDDL (arXiv 2301.06813) section 5.3: dense layers hold most parameters and little work."""
    plan = plan_of("vgg16", "piz-daint:4", 16)
    assert set().union(*layouts("vgg16", plan, ".weight", ndim=4).values()) == {B}
    dense = layouts("vgg16", plan, ".weight", ndim=2)
    assert len(dense) == 3
    assert all(states <= {S(0), S(1)} for states in dense.values())
    parallel = plan.document["baselines"]["data_parallel"]
    assert plan.document["step_time_s"] < 0.66 * parallel["step_time_s"]
    assert plan.document["comm_bytes_per_device"] < 0.11 * parallel["comm_bytes_per_device"]


def test_a_batch_that_is_large_enough_hides_the_gradients_of_vggs_dense_layers() -> None:
    plan = plan_of("vgg16", "piz-daint:4", 128)
    parallel = plan.document["baselines"]["data_parallel"]
    assert 0.99 * parallel["step_time_s"] < plan.document["step_time_s"] < parallel["step_time_s"]
    assert parallel["breakdown"]["hidden_comm_s"] > 10 * parallel["breakdown"]["exposed_comm_s"]


def test_tables_beyond_a_devices_memory_are_split_and_fit() -> None:
    """OneFlow section 6.3.2. The tables alone are 17 GB, a device has 16 GiB."""
    plan, cluster = plan_of("wide-deep", "piz-daint:16", 16384), cluster_of("piz-daint:16")
    graph, strategy = graph_of("wide-deep"), plan.strategy
    tables = {leaf.name: leaf.meta for leaf in graph.parameters if leaf.name.startswith("tables.")}
    assert sum(meta.num_bytes for meta in tables.values()) > cluster.device.memory_bytes
    large = [name for name, meta in tables.items() if meta.sizes[0] > 100_000]
    assert sum(tables[name].sizes[0] for name in large) > 10**7
    for name in large:
        local = local_shape(tables[name].sizes, strategy.parameters[name], strategy.mesh)
        assert prod(local) * cluster.num_devices == prod(tables[name].sizes), name
    assert plan.document["memory_bytes_per_device"] <= plan.document["memory_limit_bytes"]
    assert not plan.document["baselines"]["data_parallel"]["feasible"]


def test_dense_layers_and_small_tables_beside_split_tables_stay_mostly_whole() -> None:
    plan = plan_of("wide-deep", "piz-daint:16", 16384)
    tables = {leaf.name: leaf.meta.sizes[0] for leaf in graph_of("wide-deep").parameters if "tables" in leaf.name}
    assert all(set(plan.strategy.parameters[name]) == {B} for name, rows in tables.items() if rows < 2048)
    for name, states in layouts("wide-deep", plan, ".weight", ndim=2).items():
        if name.startswith("layers."):
            assert B in states, name


def test_a_million_classes_are_split_from_the_weights_to_the_loss() -> None:
    """OneFlow section 6.3.1, with the norms and the margin that InsightFace adds."""
    plan = plan_of("faces-1m", "dgx-a100-80g:1", 512)
    strategy = plan.strategy
    assert set(strategy.parameters["head.weight"]) == {S(0)}
    nodes = {node.name: node.op for node in graph_of("faces-1m").nodes}
    for op in ("aten.scatter_add.default", "aten.log_softmax.int"):
        name = next(name for name, each in nodes.items() if each == op)
        assert set(strategy.signatures[name].outs[0]) == {S(1)}, op
    early = [f"trunk.stages.{stage}." for stage in range(12)]
    convolutions = layouts("faces-1m", plan, ".weight", ndim=4)
    assert set().union(*(states for name, states in convolutions.items() if name.startswith(tuple(early)))) == {B}
    assert plan.document["step_time_s"] < 0.8 * plan.document["baselines"]["data_parallel"]["step_time_s"]


def test_experts_are_split_over_devices_and_tokens_exchanged_all_to_all() -> None:
    """GShard's own layout: experts by expert, all else by sequence."""
    plan = plan_of("moe", "dgx-a100-80g:1", 64)
    strategy = plan.strategy
    for name in ("mixture.up", "mixture.down"):
        experts = layouts("moe", plan, name, ndim=3)
        assert len(experts) == 6
        assert set().union(*experts.values()) == {S(0)}
    assert set().union(*layouts("moe", plan, "gate.weight", ndim=2).values()) == {B}
    assert not plan.document["baselines"]["data_parallel"]["feasible"]
    exchanged = [route for (shape, _, _, _, _), route in strategy.paths.items() if len(shape) == 4 and shape[0] == 128]
    assert exchanged
    assert all({route[0][0], route[-1][0]} == {S(0), S(1)} for route in exchanged)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("name", "gap"), [("resnet50-small", 2e-3), ("wide-deep-small", 0.016), ("faces-small", 0.022), ("moe-small", 0.3)]
)
def test_small_models_are_planned_to_a_known_gap(name: str, gap: float) -> None:
    """Measured: what communicates most of its time is farther from its bound."""
    document = plan_of(name, "local:2x2", 16).document
    assert 0 < document["lower_bound_s"] <= document["step_time_s"]
    assert document["gap"] <= gap
    assert document["memory_bytes_per_device"] <= document["memory_limit_bytes"]
