"""Plans for other trainers: each can be exported exactly, and none is faster than the plan of the whole space."""

from __future__ import annotations

import pytest

from autosbp.api import LogicalGraph, Plan, PlanOptions, capture, load_cluster, make_plan, plan_for
from autosbp.errors import InfeasibleError, InputError, UnsupportedError
from autosbp.export import export_plan
from autosbp.trainers import TRAINERS

CLUSTER = load_cluster("dgx-a100-40g:1")
OPTIONS = PlanOptions(global_batch=64, baselines=(), precision="bf16-mixed")


@pytest.fixture(scope="module")
def graph() -> LogicalGraph:
    return capture("zoo:gpt2")


@pytest.fixture(scope="module")
def best(graph: LogicalGraph) -> Plan:
    return make_plan(graph, CLUSTER, None, OPTIONS)


@pytest.mark.some(2)
@pytest.mark.parametrize("name", TRAINERS)
def test_a_plan_for_a_trainer_is_exported_exactly(graph: LogicalGraph, best: Plan, name: str) -> None:
    found = plan_for(name, graph, CLUSTER, None, OPTIONS)
    assert export_plan(name, found, graph)
    assert found.document["trainer"] == name
    assert found.document["step_time_s"] >= best.document["lower_bound_s"]
    assert found.document["step_time_s"] >= best.document["step_time_s"] * (1 - OPTIONS.gap_tolerance)
    assert found.document["memory_bytes_per_device"] <= found.document["memory_limit_bytes"]
    assert Plan.from_dict(found.to_dict()).plan_id == found.plan_id


def test_requested_stages_are_whole_layers(graph: LogicalGraph) -> None:
    options = PlanOptions(global_batch=64, baselines=(), stages=2, precision="bf16-mixed")
    found = plan_for("megatron", graph, CLUSTER, None, options)
    assert found.strategy.num_stages == 2
    assert "--pipeline-model-parallel-size 2" in export_plan("megatron", found, graph)["megatron_args.sh"]
    with pytest.raises(InputError, match="exclude every strategy"):
        plan_for("accelerate", graph, CLUSTER, None, options)


def test_what_a_trainer_cannot_train_is_named(graph: LogicalGraph) -> None:
    with pytest.raises(UnsupportedError, match="float16 parameters with adamw"):
        plan_for("torchtitan", graph, CLUSTER, None, PlanOptions(global_batch=64, baselines=(), precision="fp16-mixed"))
    with pytest.raises(InputError, match="accelerate, deepspeed, megatron, torchtitan"):
        plan_for("horovod", graph, CLUSTER, None, OPTIONS)
    small = PlanOptions(global_batch=64, baselines=(), precision="bf16-mixed", memory_limit_bytes=10**8)
    with pytest.raises(InfeasibleError, match="memory_limit_bytes"):
        plan_for("deepspeed", graph, CLUSTER, None, small)
