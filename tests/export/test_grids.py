"""torchtitan, Megatron-LM, DeepSpeed and Accelerate: a grid is written with its degrees and storage, or refused."""

from __future__ import annotations

import ast
import json
import shlex
import subprocess
import tomllib
from dataclasses import replace
from typing import Any

import pytest
import yaml

from autosbp.cluster.spec import Cluster, load_cluster
from autosbp.costmodel.recompute import checkpointing_segments, recomputable_blocks
from autosbp.errors import InputError, UnsupportedError
from autosbp.export import EXPORTERS, export_plan
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Plan, plan_id_of
from autosbp.program.parameter_sharding import shard_parameters
from autosbp.search.plan_options import PlanOptions
from autosbp.search.planner import make_plan
from autosbp.search.sync_search import with_builder
from autosbp.zoo import zoo_graph

pytestmark = pytest.mark.integration

GRIDS = ("torchtitan", "megatron", "deepspeed", "accelerate")
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


def sharded(plan: Plan, graph: LogicalGraph, gather: str = "use") -> Plan:
    """The plan with parameters stored split over the ranks that use whole copies."""
    strategy = plan.strategy
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    found = shard_parameters(bound, strategy, gather).to_dict()
    return changed(plan, **{name: found[name] for name in ("parameters", "paths", "gather") if name in found})


def titan(plan: Plan, graph: LogicalGraph) -> dict[str, Any]:
    return tomllib.loads(export_plan("torchtitan", plan, graph)["torchtitan.toml"])


def titan_python(plan: Plan, graph: LogicalGraph) -> dict[str, Any]:
    """The constants of the module for torchtitan 0.3, without importing torchtitan."""
    source = export_plan("torchtitan", plan, graph)["autosbp_torchtitan.py"]
    found = [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]
    return {node.targets[0].id: ast.literal_eval(node.value) for node in found}  # type: ignore[attr-defined]


@pytest.mark.parametrize("baseline", DEGREES)
def test_torchtitan_gets_the_degrees_and_batches(plan: Plan, graph: LogicalGraph, baseline: str) -> None:
    data, tensor = DEGREES[baseline]
    subject = sharded(plan.with_baseline(baseline), graph)
    config, python = titan(subject, graph), titan_python(subject, graph)
    for degrees in (config["parallelism"], python["PARALLELISM"]):
        assert (degrees["data_parallel_shard_degree"], degrees["tensor_parallel_degree"]) == (data, tensor)
        assert degrees["data_parallel_replicate_degree"] == degrees["pipeline_parallel_degree"] == 1
        assert degrees["fsdp_reshard_after_forward"] == "always"
    for training in (config["training"], python["TRAINING"]):
        assert training["global_batch_size"] == 16
        assert training["local_batch_size"] == subject.strategy.micro_batch // data


def test_torchtitan_has_ddp_by_itself_and_synchronises_in_every_microbatch(plan: Plan, graph: LogicalGraph) -> None:
    whole = changed(plan.with_baseline("data_parallel"), micro_batch=16)
    assert titan(whole, graph)["parallelism"]["data_parallel_replicate_degree"] == 4
    assert "fsdp_reshard_after_forward" not in titan(whole, graph)["parallelism"]
    assert titan(sharded(whole, graph, "step"), graph)["parallelism"]["fsdp_reshard_after_forward"] == "never"
    with pytest.raises(UnsupportedError, match="once for 2 microbatches"):
        titan(plan.with_baseline("data_parallel"), graph)
    with pytest.raises(UnsupportedError, match="next to other parallelism; the plan shards none"):
        titan(changed(plan.with_baseline("megatron"), micro_batch=16), graph)


def test_stages_of_zero_are_written_as_each_tool_says_them(plan: Plan, graph: LogicalGraph) -> None:
    base = plan.with_baseline("data_parallel")

    def zero(subject: Plan) -> Any:
        return json.loads(export_plan("deepspeed", subject, graph)["deepspeed.json"])["zero_optimization"]

    def fsdp(subject: Plan) -> Any:
        return yaml.safe_load(export_plan("accelerate", subject, graph)["accelerate.yaml"])

    once, use = sharded(base, graph, "step"), sharded(base, graph)
    assert zero(base) == {"stage": 0}
    assert (zero(once)["stage"], zero(changed(once, micro_batch=16))["stage"], zero(use)["stage"]) == (1, 2, 3)
    assert zero(once)["reduce_bucket_size"] == base.strategy.bucket_bytes // 4
    assert "offload_optimizer" not in zero(use)
    assert zero(changed(use, offload=True))["offload_optimizer"]["device"] == "cpu"
    arguments = export_plan("megatron", once, graph)["megatron_args.sh"]
    assert "--use-distributed-optimizer" in arguments
    assert "--use-distributed-optimizer" not in export_plan("megatron", base, graph)["megatron_args.sh"]
    found = fsdp(use)
    assert (found["distributed_type"], found["num_processes"], found["use_cpu"]) == ("FSDP", 4, True)
    assert found["fsdp_config"]["fsdp_reshard_after_forward"] is True and "parallelism_config" not in found
    assert fsdp(base)["distributed_type"] == "MULTI_CPU"
    with pytest.raises(UnsupportedError, match="once a step; the plan gathers them for each use"):
        export_plan("megatron", use, graph)
    with pytest.raises(UnsupportedError, match="can offload only sharded optimizer state"):
        zero(changed(base, offload=True))


def test_hsdp_shards_over_the_inner_ranks(plan: Plan, graph: LogicalGraph) -> None:
    use = sharded(plan.with_baseline("data_parallel"), graph)
    assert [axis.name for axis in use.strategy.mesh.axes] == ["n0", "g0"]
    stored = {name: "B," + text.partition(",")[2] for name, text in use.document["strategy"]["parameters"].items()}
    inner = changed(use, parameters=stored)
    degrees = titan(inner, graph)["parallelism"]
    assert (degrees["data_parallel_replicate_degree"], degrees["data_parallel_shard_degree"]) == (2, 2)
    text = yaml.safe_load(export_plan("accelerate", inner, graph)["accelerate.yaml"])["parallelism_config"]
    assert (text["parallelism_config_dp_replicate_size"], text["parallelism_config_dp_shard_size"]) == (2, 2)
    once = changed(inner, gather="step")
    assert "--num-distributed-optimizer-instances 2" in export_plan("megatron", once, graph)["megatron_args.sh"]
    with pytest.raises(UnsupportedError, match="the plan shards over 2 of 4"):
        export_plan("deepspeed", inner, graph)
    stored = {name: text.partition(",")[0] + ",B" for name, text in use.document["strategy"]["parameters"].items()}
    with pytest.raises(UnsupportedError, match="shards parameters over the innermost data parallel axes"):
        titan(changed(use, parameters=stored), graph)


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
        ("embedding_0", "B,B S0,B -> S0,B", "embedding_0 .* repeats its work"),
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
    subject = changed(plan.with_baseline("data_parallel"), micro_batch=16)
    assert export_plan(target, subject, graph) == export_plan(target, subject, graph)


def test_an_unknown_target_lists_the_known_ones(plan: Plan) -> None:
    with pytest.raises(InputError, match="accelerate, deepspeed, dtensor, megatron, perfetto, torchtitan"):
        export_plan("horovod", plan)


def test_recomputed_layers_are_written_as_each_tool_says_it(plan: Plan, graph: LogicalGraph) -> None:
    bound = graph.bind(**dict.fromkeys(graph.symbols, 8))
    blocks = recomputable_blocks(bound)

    def exported(target: str, interval: int, kept: int) -> str:
        runs = [list(run) for run in checkpointing_segments(blocks, interval, (), kept)]
        base = plan.with_baseline("megatron")
        base = sharded(base, graph) if target == "torchtitan" else base
        return next(iter(export_plan(target, changed(base, recompute=runs), graph).values()))

    assert "--recompute-method uniform\n    --recompute-num-layers 2" in exported("megatron", 2, 0)
    assert "--recompute-method block\n    --recompute-num-layers 3" in exported("megatron", 1, 1)
    assert tomllib.loads(exported("torchtitan", 1, 0))["activation_checkpoint"]["mode"] == "full"
    assert "--sequence-parallel" not in exported("megatron", 1, 0)
    assert json.loads(exported("deepspeed", 2, 0))["activation_checkpointing"] == {"number_checkpoints": 2}
    with pytest.raises(UnsupportedError, match="the first 3 of 4"):
        exported("torchtitan", 1, 1)
    inside = changed(plan.with_baseline("megatron"), recompute=[[blocks[0][1], blocks[0][2]]])
    for target in GRIDS:
        with pytest.raises(UnsupportedError, match="whole layers"):
            export_plan(target, inside, graph)


def test_the_tools_train_in_the_plan_s_precision(graph: LogicalGraph, cluster: Cluster) -> None:
    def planned(precision: str) -> Plan:
        options = PlanOptions(global_batch=16, micro_batch=16, baselines=("data_parallel",), precision=precision)
        return make_plan(graph, cluster, options=options).with_baseline("data_parallel")

    mixed, pure, half = map(planned, ("bf16-mixed", "bf16", "fp16-mixed"))
    training = tomllib.loads(export_plan("torchtitan", mixed, graph)["torchtitan.toml"])["training"]
    assert (training["dtype"], training["mixed_precision_param"]) == ("float32", "bfloat16")
    assert training["mixed_precision_reduce"] == "float32"
    assert tomllib.loads(export_plan("torchtitan", pure, graph)["torchtitan.toml"])["training"]["dtype"] == "bfloat16"
    arguments = export_plan("megatron", half, graph)["megatron_args.sh"]
    assert "--fp16" in arguments and "--accumulate-allreduce-grads-in-fp32" in arguments
    whole, once = (
        json.loads(export_plan("deepspeed", each, graph)["deepspeed.json"])
        for each in (mixed, sharded(mixed, graph, "step"))
    )
    assert whole["bf16"] == once["bf16"] == {"enabled": True}
    assert "data_types" not in whole and once["data_types"] == {"grad_accum_dtype": "fp32"}
    with pytest.raises(UnsupportedError, match="in bfloat16 without ZeRO; the plan accumulates 2 microbatches"):
        export_plan("deepspeed", changed(mixed, micro_batch=8), graph)
    for target in ("megatron", "deepspeed"):
        with pytest.raises(UnsupportedError, match="bf16 has none"):
            export_plan(target, pure, graph)
    texts = [export_plan("accelerate", each, graph)["accelerate.yaml"] for each in (mixed, pure, half)]
    assert [yaml.safe_load(text)["mixed_precision"] for text in texts] == ["bf16", "no", "fp16"]
    with pytest.raises(UnsupportedError, match="float16"):
        export_plan("torchtitan", half, graph)


def test_a_plan_with_a_builder_is_exported_as_a_trace_only() -> None:
    graph = zoo_graph("mlp-small")
    asked = PlanOptions(global_batch=16, storage="as_used", data_parallel=4, baselines=())
    plan = with_builder(make_plan(graph, load_cluster("local:4"), None, asked), graph, None, "ps", None)
    with pytest.raises(UnsupportedError, match="deepspeed cannot express how the plan synchronizes gradients"):
        export_plan("deepspeed", plan, graph)
    assert list(export_plan("perfetto", plan, graph)) == ["trace.json"]
