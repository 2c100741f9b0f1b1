"""torchtitan, Megatron-LM and DeepSpeed: what is a grid is written with its degrees, what is not is refused."""

from __future__ import annotations

import json
import shlex
import subprocess
import tomllib
from dataclasses import replace
from typing import Any

import pytest

from autosbp.cluster.spec import Cluster
from autosbp.costmodel.recompute import checkpointing_segments, recomputable_blocks
from autosbp.errors import InputError, UnsupportedError
from autosbp.export import EXPORTERS, export_plan
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Plan, plan_id_of
from autosbp.search.plan_options import PlanOptions
from autosbp.search.planner import make_plan

pytestmark = pytest.mark.integration

GRIDS = ("torchtitan", "megatron", "deepspeed")
DEGREES = {"data_parallel": (4, 1), "megatron": (2, 2)}


@pytest.fixture(scope="module")
def found(graph: LogicalGraph, cluster: Cluster) -> Plan:
    """Searched with one layer whole and another one split."""
    pins = {f"transformer.h.{at}.mlp.c_fc.weight.t": layout for at, layout in enumerate(("B,B", "B,S0"))}
    options = PlanOptions(global_batch=16, micro_batch=8, stages=1, baselines=(), pins=pins)
    return make_plan(graph, cluster, options=options)


def changed(plan: Plan, **strategy: Any) -> Plan:
    """The plan with other members of its strategy, and the id that follows."""
    document = {**plan.document, "strategy": {**plan.document["strategy"], **strategy}}
    return Plan.from_dict({**document, "plan_id": plan_id_of(document)})


@pytest.mark.parametrize("baseline", DEGREES)
def test_torchtitan_gets_the_degrees_and_batches(plan: Plan, graph: LogicalGraph, baseline: str) -> None:
    data, tensor = DEGREES[baseline]
    subject = plan.with_baseline(baseline)
    config = tomllib.loads(export_plan("torchtitan", subject, graph)["torchtitan.toml"])
    degrees = config["parallelism"]
    assert (degrees["data_parallel_replicate_degree"], degrees["tensor_parallel_degree"]) == (data, tensor)
    assert degrees["data_parallel_shard_degree"] == degrees["pipeline_parallel_degree"] == 1
    assert config["training"]["global_batch_size"] == 16
    assert config["training"]["local_batch_size"] == subject.strategy.micro_batch // data


@pytest.mark.parametrize("baseline", DEGREES)
def test_megatron_arguments_survive_the_shell(plan: Plan, graph: LogicalGraph, baseline: str) -> None:
    data, tensor = DEGREES[baseline]
    text = export_plan("megatron", plan.with_baseline(baseline), graph)["megatron_args.sh"]
    shown = subprocess.run(["bash", "-c", f'{text}\necho "${{AUTOSBP_ARGS[@]}}"'], capture_output=True, text=True)
    words = shlex.split(shown.stdout)
    assert words[words.index("--tensor-model-parallel-size") + 1] == str(tensor)
    assert words[words.index("--micro-batch-size") + 1] == str(8 // data)
    assert words[words.index("--global-batch-size") + 1] == "16"


@pytest.mark.parametrize("baseline", DEGREES)
def test_deepspeed_batches_multiply_to_the_global_batch(plan: Plan, graph: LogicalGraph, baseline: str) -> None:
    data, tensor = DEGREES[baseline]
    config = json.loads(export_plan("deepspeed", plan.with_baseline(baseline), graph)["deepspeed.json"])
    passes = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"]
    assert passes * data == config["train_batch_size"] == 16
    assert config["zero_optimization"] == {"stage": 0}
    assert config.get("tensor_parallel", {}).get("autotp_size", 1) == tensor


@pytest.mark.parametrize("target", GRIDS)
def test_a_grid_with_tensor_ranks_outside_is_refused(plan: Plan, graph: LogicalGraph, target: str) -> None:
    outside = plan.with_baseline("megatron")
    mesh = outside.document["strategy"]["mesh"]
    swapped = {
        name: " ".join(map(swap, text.split(" "))) for name, text in outside.document["strategy"]["signatures"].items()
    }
    stored = {name: swap(text) for name, text in outside.document["strategy"]["parameters"].items()}
    with pytest.raises(UnsupportedError, match="n0: tensor, g0: data"):
        export_plan(target, changed(outside, mesh=mesh, signatures=swapped, parameters=stored), graph)


def swap(layout: str) -> str:
    return ",".join(reversed(layout.split(",")))


@pytest.mark.parametrize(
    ("op", "signature", "why"),
    [
        ("linear_4", "S0,I B,I B,I -> S0,I", "linear_4 .* repeats its work"),
        ("linear_4", "S0,S0 B,B B,B -> S0,S0", "linear_4 .* is data parallel while"),
        ("linear_4", "S0,S1 B,B B,B -> S0,S1", "linear_4 .* splits activations but not its parameters"),
        ("layer_norm_1", "S0,B B,B B,B -> S0,B", "layer_norm_1 .* repeats its work"),
        ("linear_5", "S0,S2 B,S1 B,I -> S0,P", "c_proj.bias"),
    ],
)
@pytest.mark.parametrize("target", GRIDS)
def test_the_first_op_that_is_no_grid_is_named(
    plan: Plan, graph: LogicalGraph, target: str, op: str, signature: str, why: str
) -> None:
    base = plan.with_baseline("megatron")
    signatures = {**base.document["strategy"]["signatures"], op: signature}
    parameters = dict(base.document["strategy"]["parameters"])
    if op == "linear_5":
        parameters["transformer.h.0.mlp.c_proj.bias"] = "S0,I"
    with pytest.raises(UnsupportedError, match=why):
        export_plan(target, changed(base, signatures=signatures, parameters=parameters), graph)


@pytest.mark.parametrize("target", GRIDS)
def test_searched_strategies_are_exported_only_if_they_are_a_grid(
    found: Plan, graph: LogicalGraph, target: str
) -> None:
    """It splits layers that are alike unlike; a silent approximation would be another plan."""
    with pytest.raises(UnsupportedError, match=target):
        export_plan(target, found, graph)


@pytest.mark.parametrize("target", [*GRIDS, "perfetto"])
def test_the_graph_is_needed_and_checked(plan: Plan, graph: LogicalGraph, target: str) -> None:
    with pytest.raises(InputError, match="graph: None is invalid"):
        export_plan(target, plan)
    with pytest.raises(InputError, match=plan.document["provenance"]["graph_hash"]):
        export_plan(target, plan, replace(graph, name="other"))


@pytest.mark.parametrize("target", EXPORTERS)
def test_the_same_plan_gives_the_same_bytes(plan: Plan, graph: LogicalGraph, target: str) -> None:
    subject = plan.with_baseline("megatron")
    assert export_plan(target, subject, graph) == export_plan(target, subject, graph)


def test_an_unknown_target_lists_the_known_ones(plan: Plan) -> None:
    with pytest.raises(InputError, match="deepspeed, dtensor, megatron, perfetto, torchtitan"):
        export_plan("horovod", plan)


def test_recomputed_layers_are_written_as_each_tool_says_it(plan: Plan, graph: LogicalGraph) -> None:
    bound = graph.bind(**dict.fromkeys(graph.symbols, 8))
    blocks = recomputable_blocks(bound)

    def exported(target: str, interval: int, kept: int) -> str:
        runs = [list(run) for run in checkpointing_segments(blocks, interval, (), kept)]
        return "".join(export_plan(target, changed(plan.with_baseline("megatron"), recompute=runs), graph).values())

    assert "--recompute-method uniform\n    --recompute-num-layers 2" in exported("megatron", 2, 0)
    assert "--recompute-method block\n    --recompute-num-layers 3" in exported("megatron", 1, 1)
    assert tomllib.loads(exported("torchtitan", 1, 0))["activation_checkpoint"]["mode"] == "full"
    assert json.loads(exported("deepspeed", 2, 0))["activation_checkpointing"] == {"number_checkpoints": 2}
    with pytest.raises(UnsupportedError, match="the first 3 of 4"):
        exported("torchtitan", 1, 1)
    inside = changed(plan.with_baseline("megatron"), recompute=[[blocks[0][1], blocks[0][2]]])
    for target in GRIDS:
        with pytest.raises(UnsupportedError, match="whole layers"):
            export_plan(target, inside, graph)


def test_the_tools_train_in_the_plan_s_precision(graph: LogicalGraph, cluster: Cluster) -> None:
    def planned(precision: str) -> Plan:
        options = PlanOptions(global_batch=16, micro_batch=8, baselines=("data_parallel",), precision=precision)
        return make_plan(graph, cluster, options=options).with_baseline("data_parallel")

    mixed, pure, half = map(planned, ("bf16-mixed", "bf16", "fp16-mixed"))
    training = tomllib.loads(export_plan("torchtitan", mixed, graph)["torchtitan.toml"])["training"]
    assert (training["dtype"], training["mixed_precision_param"]) == ("float32", "bfloat16")
    assert training["mixed_precision_reduce"] == "float32"
    assert tomllib.loads(export_plan("torchtitan", pure, graph)["torchtitan.toml"])["training"]["dtype"] == "bfloat16"
    arguments = export_plan("megatron", half, graph)["megatron_args.sh"]
    assert "--fp16" in arguments and "--accumulate-allreduce-grads-in-fp32" in arguments
    config = json.loads(export_plan("deepspeed", mixed, graph)["deepspeed.json"])
    assert config["bf16"] == {"enabled": True} and config["data_types"] == {"grad_accum_dtype": "fp32"}
    for target in ("megatron", "deepspeed"):
        with pytest.raises(UnsupportedError, match="bf16 has none"):
            export_plan(target, pure, graph)
    with pytest.raises(UnsupportedError, match="float16"):
        export_plan("torchtitan", half, graph)
