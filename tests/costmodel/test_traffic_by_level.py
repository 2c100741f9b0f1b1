"""Communication by level: the parts add up to what a plan says is exposed and hidden."""

from __future__ import annotations

import pytest

from autosbp.api import PlanOptions, capture, load_cluster, make_plan
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.traffic_by_level import level_seconds
from autosbp.plan.plan import Plan


def seconds_of(plan: Plan, model: str) -> dict[str, float]:
    graph, strategy = capture(model), plan.strategy
    compute = ComputeModel(plan.cluster.device)
    boxing = BoxingModel(NetworkModel(plan.cluster), strategy.mesh, compute.copy_bytes_per_s)
    return level_seconds(graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch)), strategy, boxing, compute)


@pytest.mark.parametrize(("model", "cluster"), [("zoo:gpt2-demo", "local:2x2"), ("zoo:mlp-small", "local:4")])
def test_levels_add_up_to_what_is_exposed_and_hidden(model: str, cluster: str) -> None:
    there = load_cluster(cluster)
    plan = make_plan(capture(model), there, None, PlanOptions(global_batch=16, stages=1))
    found = seconds_of(plan, model)
    assert list(found) == [level.name for level in there.levels]
    parts = plan.document["breakdown"]
    assert sum(found.values()) == pytest.approx(parts["exposed_comm_s"] + parts["hidden_comm_s"], rel=1e-9)
    assert parts["hidden_comm_s"] > 0 or model == "zoo:mlp-small"
    assert min(found.values()) >= 0


def test_splits_inside_a_node_send_over_its_links_alone() -> None:
    options = PlanOptions(global_batch=16, stages=1, pins={"layers.*.weight": "B,S0 -> B,S0"}, baselines=())
    plan = make_plan(capture("zoo:mlp-small"), load_cluster("local:2x2"), None, options)
    inside = make_plan(
        capture("zoo:mlp-small"), load_cluster("local:1x4"), None, PlanOptions(global_batch=16, stages=1)
    )
    assert min(seconds_of(plan, "zoo:mlp-small").values()) > 0
    outer, inner = seconds_of(inside, "zoo:mlp-small").values()
    assert outer == 0 < inner


def test_messages_between_stages_cross_the_links_between_their_devices() -> None:
    for cluster, crossed in (("local:2x2", {"n", "g"}), ("local:4x1", {"n"}), ("local:1x4", {"g"})):
        options = PlanOptions(global_batch=16, stages=4, baselines=())
        plan = make_plan(capture("zoo:mlp-small"), load_cluster(cluster), None, options)
        found = seconds_of(plan, "zoo:mlp-small")
        assert {name for name, spent in found.items() if spent > 0} == crossed
