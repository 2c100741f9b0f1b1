"""Plans in fp8-mixed for trainers: what their files say, and what they refuse."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
import yaml

from autosbp.api import LogicalGraph, PlanOptions, load_cluster, plan_for
from autosbp.errors import UnsupportedError
from autosbp.export import export_plan
from autosbp.zoo import zoo_graph

OPTIONS = PlanOptions(global_batch=64, baselines=(), precision="fp8-mixed", time_limit_s=3)


@pytest.fixture(scope="module")
def graph() -> LogicalGraph:
    return zoo_graph("llama-demo")


def exported(name: str, graph: LogicalGraph) -> dict[str, str]:
    return export_plan(name, plan_for(name, graph, load_cluster("dgx-h100:1"), None, OPTIONS), graph)


def test_torchtitan_converts_linear_layers_with_dynamic_scales_of_tensors(graph: LogicalGraph) -> None:
    files = exported("torchtitan", graph)
    config = tomllib.loads(files["torchtitan.toml"])
    assert config["model"] == {"converters": ["quantize.linear.float8"]}
    float8 = config["quantize"]["linear"]["float8"]
    assert float8 == {"recipe_name": "tensorwise", "enable_fsdp_float8_all_gather": False}
    assert config["compile"] == {"enable": True}
    training = config["training"]
    assert (training["mixed_precision_param"], training["mixed_precision_reduce"]) == ("bfloat16", "float32")
    module = files["autosbp_torchtitan.py"]
    compile(module, "autosbp_torchtitan.py", "exec")
    assert "Float8LinearConverter.Config(" in module and "scales rows" in module


def test_megatron_scales_tensors_by_their_current_values(graph: LogicalGraph) -> None:
    text = exported("megatron", graph)["megatron_args.sh"]
    for argument in (
        "--bf16",
        "--fp8-format hybrid",
        "--fp8-recipe tensorwise",
        "--accumulate-allreduce-grads-in-fp32",
    ):
        assert f"    {argument}\n" in text


def test_accelerate_uses_torchao_without_float8_gathers(graph: LogicalGraph) -> None:
    text = exported("accelerate", graph)["accelerate.yaml"]
    config = yaml.safe_load(text)
    assert config["mixed_precision"] == "fp8"
    assert config["fp8_config"] == {"backend": "AO", "enable_fsdp_float8_all_gather": False, "pad_inner_dim": True}
    assert "layers_to_filter=[]" in text


def test_deepspeed_and_dtensor_refuse_the_precision_by_name(graph: LogicalGraph) -> None:
    with pytest.raises(UnsupportedError, match="deepspeed .* fp8-mixed"):
        exported("deepspeed", graph)
    plan = plan_for("torchtitan", graph, load_cluster("dgx-h100:1"), None, OPTIONS)
    for name in ("deepspeed", "dtensor"):
        with pytest.raises(UnsupportedError, match=f"{name} .* fp8-mixed"):
            export_plan(name, plan, graph)


def test_local_shapes_that_kernels_of_float8_lack_are_refused(graph: LogicalGraph) -> None:
    options = replace(OPTIONS, tensor_parallel=2, stages=1, storage="as_used")  # of 688 hidden features
    with pytest.raises(
        UnsupportedError, match="megatron .* rows and columns are multiples of 16; linear_4 has 344 x 256"
    ):
        plan_for("megatron", graph, load_cluster("dgx-h100:1x2"), None, options)
    plan_for("megatron", graph, load_cluster("dgx-h100:1x2"), None, replace(options, precision="bf16-mixed"))
