"""Plans with stages: cuts, schedule and microbatches as each tool says them, and clear refusals where it cannot."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from autosbp.costmodel.recompute import checkpointing_segments, recomputable_blocks
from autosbp.errors import InputError, UnsupportedError
from autosbp.export import EXPORTERS, export_plan
from autosbp.graph.ir import LogicalGraph
from autosbp.launch.local import run_ranks
from autosbp.plan.plan import Plan
from tests.executor.pipeline.strategies import tensor_parallel
from tests.export.ranks import DISTRIBUTES
from tests.export.test_grids import changed, sharded
from tests.search.plans import graph_of, planned

pytestmark = [pytest.mark.some(2), pytest.mark.integration]

GRIDS = ("deepspeed", "megatron", "torchtitan")
LAYERS = 4


def graph(model: str = "llama-demo") -> LogicalGraph:
    return graph_of(model)


def starts(model: str) -> list[str]:
    """The first op of each layer, and of what follows the last one."""
    bound = graph(model).bind(batch=2)
    blocks = recomputable_blocks(bound)
    assert len(blocks) == LAYERS
    names = [node.name for node in bound.nodes if node.name in bound.parameter_dependent]
    return [*(block[0] for block in blocks), names[names.index(blocks[-1][-1]) + 1]]


def staged(
    schedule: str, before: Sequence[int], stages: int = 2, model: str = "llama-demo", tensor: int = 1, **more: Any
) -> Plan:
    """Data parallel over 2 ranks of each stage, or so many tensor parallel ones, in 8 microbatches of 2, cut before these
    layers."""
    plan = planned(model, f"local:{stages}x2", stages=stages, micro_batch=2, storage="as_used", data_parallel=2)
    if tensor > 1:
        split = tensor_parallel(graph(model), tensor).to_dict()
        more |= {name: split[name] for name in ("mesh", "signatures", "parameters", "paths")}
    cuts = [starts(model)[layer] for layer in before]
    return changed(plan, pipeline={"num_stages": stages, "cuts": cuts, "schedule": schedule}, **more)


def arguments(plan: Plan, model: str = "llama-demo") -> list[str]:
    text = export_plan("megatron", plan, graph(model))["megatron_args.sh"]
    shown = subprocess.run(
        ["bash", "-c", f"{text}\nprintf '%q ' \"${{AUTOSBP_ARGS[@]}}\""], capture_output=True, text=True, check=True
    )
    return shlex.split(shown.stdout)


def titan(plan: Plan) -> dict[str, Any]:
    """The configuration with sharded parameters, which torchtitan needs next to stages."""
    return tomllib.loads(export_plan("torchtitan", sharded(plan, graph(), "step"), graph())["torchtitan.toml"])


def after(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_megatron_gets_stages_virtual_stages_and_uneven_layouts() -> None:
    even = arguments(staged("1f1b", [2]))
    assert after(even, "--pipeline-model-parallel-size") == "2"
    assert not any("virtual" in word or "layout" in word for word in even)
    assert (after(even, "--micro-batch-size"), after(even, "--global-batch-size")) == ("1", "16")
    looped = arguments(staged("interleaved_1f1b", [1, 2, 3]))
    assert after(looped, "--num-virtual-stages-per-pipeline-rank") == "2"
    assert after(arguments(staged("1f1b", [1])), "--pipeline-model-parallel-layout") == "Et*1|t*3L"
    assert after(arguments(staged("1f1b", [0, 4], 3)), "--pipeline-model-parallel-layout") == "E|t*4|L"
    tied = arguments(staged("1f1b", [3], model="gpt2-demo", tensor=2), "gpt2-demo")
    assert after(tied, "--tensor-model-parallel-size") == "2"
    assert after(tied, "--pipeline-model-parallel-layout") == "Et*3|t*1L"


def test_torchtitan_gets_the_modules_of_each_chunk_the_schedule_and_the_microbatch() -> None:
    found = titan(staged("zero_bubble", [1, 2, 3]))
    parallelism = found["parallelism"]
    assert parallelism["pipeline_parallel_degree"] == 2
    assert (parallelism["data_parallel_replicate_degree"], parallelism["data_parallel_shard_degree"]) == (1, 2)
    assert parallelism["fsdp_reshard_after_forward"] == "never"
    assert parallelism["pipeline_parallel_schedule"] == "InterleavedZeroBubble"
    assert parallelism["module_fqns_per_model_part"] == [
        ["tok_embeddings", "layers.0"],
        ["layers.1"],
        ["layers.2"],
        ["layers.3", "norm", "output"],
    ]
    # A replica's part of the batch is cut into the plan's 8 microbatches.
    assert found["training"]["local_batch_size"] // parallelism["pipeline_parallel_microbatch_size"] == 8
    assert found["training"]["local_batch_size"] * 2 == found["training"]["global_batch_size"] == 16
    assert titan(staged("gpipe", [3]))["parallelism"]["module_fqns_per_model_part"][1] == ["layers.3", "norm", "output"]


def test_deepspeeds_module_deals_layers_out_by_their_class(monkeypatch: pytest.MonkeyPatch) -> None:
    files = export_plan("deepspeed", staged("1f1b", [2]), graph())
    config = json.loads(files["deepspeed.json"])
    assert config["gradient_accumulation_steps"] == 8
    assert config["train_micro_batch_size_per_gpu"] * 8 * 2 == config["train_batch_size"] == 16
    pipe, names = ModuleType("deepspeed.pipe"), dict[str, Any]()
    pipe.PipelineModule = lambda **options: options  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deepspeed", ModuleType("deepspeed"))
    monkeypatch.setitem(sys.modules, "deepspeed.pipe", pipe)
    exec(compile(files["deepspeed_pipeline.py"], "deepspeed_pipeline.py", "exec"), names)  # noqa: S102
    made = names["pipeline_module"]([], "Layer", loss_fn=None)
    assert (made["num_stages"], made["partition_method"], made["loss_fn"]) == (2, "type:Layer", None)
    assert names["LAYERS_OF_EACH_STAGE"] == LAYERS // 2


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("target", "schedule", "before", "why"),
    [
        ("megatron", "gpipe", [2], "megatron supports the schedules 1f1b, interleaved_1f1b; the plan uses gpipe"),
        ("megatron", "zero_bubble", [2], "the plan uses zero_bubble"),
        ("deepspeed", "zero_bubble", [2], "deepspeed supports the schedules 1f1b; the plan uses zero_bubble"),
        ("torchtitan", "message_driven", [2], "the plan uses message_driven"),
        ("deepspeed", "1f1b", [1], "requires equal numbers of layers per stage; the plan's stages have 1, 3"),
    ],
)
def test_unsupported_features_of_a_tool_are_refused_by_name(
    target: str, schedule: str, before: list[int], why: str
) -> None:
    with pytest.raises(UnsupportedError, match=why):
        export_plan(target, staged(schedule, before), graph())


def test_torchtitan_rejects_a_wgrad_lag() -> None:
    plan = staged("zero_bubble", [2])
    sooner = changed(plan, pipeline={**plan.document["strategy"]["pipeline"], "weights_lag": 0})
    with pytest.raises(UnsupportedError, match="the plan delays them by 0 passes"):
        export_plan("torchtitan", sooner, graph())
    assert "WEIGHTS_LAG = 0" in export_plan("dtensor", sooner, graph())["parallelize.py"]


@pytest.mark.parametrize("target", GRIDS)
def test_a_cut_inside_a_layer_is_refused(target: str) -> None:
    inside = recomputable_blocks(graph().bind(batch=2))[1][3]
    plan = staged("1f1b", [2])
    cut = changed(plan, pipeline={**plan.document["strategy"]["pipeline"], "cuts": [inside]})
    with pytest.raises(
        UnsupportedError, match=f"{target} assigns whole layers to stages; .* inside a layer, at {inside}"
    ):
        export_plan(target, cut, graph())


def test_shared_parameters_and_tensor_ranks_are_refused_where_a_tool_has_none() -> None:
    tied = staged("1f1b", [2], model="gpt2-demo")
    with pytest.raises(
        UnsupportedError,
        match=r"cannot share parameters between stages; several stages of the plan read transformer\.wte",
    ):
        export_plan("torchtitan", tied, graph("gpt2-demo"))
    with pytest.raises(UnsupportedError, match="2 tensor parallel ranks per stage"):
        export_plan("deepspeed", staged("1f1b", [2], model="gpt2-demo", tensor=2), graph("gpt2-demo"))


def test_recomputed_layers_are_those_of_each_chunk() -> None:
    blocks = recomputable_blocks(graph().bind(batch=2))

    def recomputed(before: list[int], interval: int, kept: int) -> Plan:
        runs = checkpointing_segments(blocks, interval, [starts("llama-demo")[layer] for layer in before], kept)
        return staged("1f1b", before, recompute=[list(run) for run in runs])

    words = arguments(recomputed([2], 1, 1))
    assert (after(words, "--recompute-method"), after(words, "--recompute-num-layers")) == ("block", "1")
    words = arguments(recomputed([1], 1, 0))
    assert (after(words, "--recompute-method"), after(words, "--recompute-num-layers")) == ("uniform", "1")
    with pytest.raises(UnsupportedError, match="different numbers of layers"):
        arguments(recomputed([1], 1, 1))
    assert titan(recomputed([2], 1, 0))["activation_checkpoint"]["mode"] == "full"
    module = export_plan("deepspeed", recomputed([2], 2, 0), graph())["deepspeed_pipeline.py"]
    assert "RECOMPUTED_TOGETHER = 2" in module
    with pytest.raises(UnsupportedError, match="2 of 4"):
        export_plan("deepspeed", recomputed([2], 1, 1), graph())


def test_accelerate_has_no_pipelines() -> None:
    with pytest.raises(UnsupportedError, match="has no pipelines; the plan has 2 stages"):
        export_plan("accelerate", staged("1f1b", [2]), graph())


@pytest.mark.some(2)
@pytest.mark.parametrize("target", sorted({*EXPORTERS} - {"accelerate"}))
def test_the_same_plan_gives_the_same_bytes_and_the_graph_is_needed(target: str) -> None:
    plan = sharded(staged("1f1b", [2]), graph(), "step")
    assert export_plan(target, plan, graph()) == export_plan(target, plan, graph())
    with pytest.raises(InputError, match="requires the plan's graph"):
        export_plan(target, plan)


def test_the_trace_has_every_pass_of_every_stage_and_ends_before_what_comes_once_a_step() -> None:
    plan = planned("llama-demo", "local:2x2", stages=2, micro_batch=2, schedules=("1f1b",))
    trace = json.loads(export_plan("perfetto", plan, graph())["trace.json"])
    passes = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert sorted((one["tid"], one["cat"], one["args"]["microbatch"]) for one in passes) == sorted(
        (stage, kind, micro) for stage in range(2) for kind in ("forward", "backward") for micro in range(8)
    )
    end_s = max(one["ts"] + one["dur"] for one in passes) / 1e6
    assert 0.5 * plan.document["step_time_s"] < end_s <= plan.document["step_time_s"]


WORKER = (
    DISTRIBUTES
    + """stage = dist.get_rank() // 2
mine = {name for chunk in plan["CHUNKS"][stage::2] for name in chunk[1]}
assert set(tensors) == mine, (stage, set(tensors) ^ mine)
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, sorted(tensors))
assert set().union(*everyone) == set(plan["PARAMETERS"])
assert everyone[0] == everyone[1] != everyone[2] == everyone[3]
exit_rank()
"""
)


def test_dtensor_gives_each_rank_the_parameters_of_its_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = graph()
    shapes = {leaf.source: list(leaf.meta.sizes) for leaf in tiny.parameters}
    assert not any(leaf.transforms for leaf in tiny.parameters)
    plan = staged("interleaved_1f1b", [1, 2, 3])
    (tmp_path / "parallelize.py").write_text(export_plan("dtensor", plan, tiny)["parallelize.py"])
    (tmp_path / "shapes.json").write_text(json.dumps(shapes))
    (tmp_path / "stages_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome = run_ranks(
        "stages_worker",
        [str(tmp_path / "parallelize.py"), str(tmp_path / "shapes.json")],
        4,
        tmp_path / "ranks.log",
        timeout_s=90.0,
    )
    assert not outcome.reason, outcome.log_tail
