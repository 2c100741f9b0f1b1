"""Graphs in a training precision: dtypes, numbers, hashes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from autosbp.errors import InputError
from autosbp.executor.parameter_shards import initial_parameters
from autosbp.executor.training import random_batch
from autosbp.graph.dtype_cast import cast_constant, cast_floats
from autosbp.graph.ir import LogicalGraph, ParameterMeta, TensorMeta
from autosbp.graph.precision import PRECISIONS, captured_hash, in_precision, planned_graph
from autosbp.graph.serialize import from_dict
from autosbp.graph.to_fx import check_shapes, constant_tensor, make_constant, to_graph_module
from autosbp.sbp.rules import check_graph
from autosbp.zoo import zoo_graph

MODELS = ("llama-demo", "gpt2-demo", "moe-small", "wide-deep-small", "resnet50-small", "mlp-small", "faces-small")


def loss_of(graph: LogicalGraph, run: Callable[..., Any] | None = None) -> torch.Tensor:
    """Loss of the same parameters and batch, whatever their dtypes."""
    bound = graph.bind(**dict.fromkeys(graph.symbols, 2))
    parameters, batch = initial_parameters(graph, seed=1), random_batch(graph, 2, seed=2)
    module = to_graph_module(bound)
    torch.manual_seed(0)
    return (run or (lambda call: call()))(
        lambda: module(*parameters.values(), *(batch[leaf.name] for leaf in bound.inputs))
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_graph_in_a_precision_has_the_dtypes_that_torch_computes(name: str, precision: str) -> None:
    graph = in_precision(zoo_graph(name), precision)
    check_graph(graph)
    check_shapes(graph.bound_at_capture)
    assert graph.meta(graph.loss).dtype == "float32"
    dtypes = PRECISIONS[precision]
    for leaf in graph.parameters:
        assert leaf.meta.dtype == dtypes.parameters
        assert leaf.meta.gradient_width == {"float32": 4, "bfloat16": 2}[dtypes.gradients]
        assert leaf.meta.optimizer_width == {"float32": 4, "bfloat16": 2}[dtypes.optimizer]


@pytest.mark.parametrize("name", ("llama-demo", "gpt2-demo", "mlp-small"))
def test_the_loss_of_a_half_precision_graph_is_that_of_autocast_within_its_rounding(name: str) -> None:
    exact = loss_of(cast_floats(zoo_graph(name), "float32", "float64"))

    def autocast(call: Callable[[], torch.Tensor]) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return call()

    rounded = loss_of(zoo_graph(name), autocast)
    ours = loss_of(in_precision(zoo_graph(name), "bf16-mixed"))
    assert abs(float(ours - exact)) <= max(3 * abs(float(rounded - exact)), 2e-3 * abs(float(exact)))


def test_losses_softmax_and_the_statistics_of_decomposed_norms_are_float32() -> None:
    graph = in_precision(zoo_graph("llama-demo"), "bf16-mixed")
    dtypes: dict[str, set[str]] = {}
    for node in graph.nodes:
        if node.name in graph.parameter_dependent:
            dtypes.setdefault(node.op.split(".")[1], set()).add(node.outputs[0].dtype)
    assert dtypes["pow"] == dtypes["rsqrt"] == dtypes["log_softmax"] == {"float32"}
    assert dtypes["linear"] == dtypes["scaled_dot_product_attention"] == dtypes["silu"] == {"bfloat16"}


def test_values_without_a_gradient_take_the_dtype_of_what_they_meet() -> None:
    graph = in_precision(zoo_graph("llama-demo"), "bf16-mixed")
    tables = [leaf for leaf in graph.constants if leaf.meta.is_float]
    assert tables and {leaf.meta.dtype for leaf in tables} == {"bfloat16"}
    rotated = [node for node in graph.nodes if node.op == "aten.cat.default"]
    assert rotated and {node.outputs[0].dtype for node in rotated} == {"bfloat16"}


def test_casts_are_shared_by_the_readers_of_a_value() -> None:
    graph = in_precision(zoo_graph("llama-demo"), "bf16-mixed")
    casts = [(node.args[0], node.args[1]) for node in graph.nodes if node.op == "aten.to.dtype"]
    assert len(casts) == len(set(casts))


def test_a_graph_of_half_precision_keeps_its_own_casts_and_gets_the_training_dtypes() -> None:
    captured = zoo_graph("llama-7b")
    mixed = in_precision(captured, "bf16-mixed")
    assert mixed.nodes == captured.nodes
    assert mixed.graph_hash != captured.graph_hash == captured_hash(mixed)
    assert {type(leaf.meta) for leaf in mixed.parameters} == {ParameterMeta}


def test_full_precision_of_a_half_precision_graph_leaves_no_cast_to_a_value_s_own_dtype() -> None:
    graph = in_precision(zoo_graph("llama-7b"), "fp32")
    dtypes = {meta.dtype for node in graph.nodes for meta in node.outputs}
    assert dtypes.isdisjoint({"bfloat16", "float16"})
    casts = [node for node in graph.nodes if node.op == "aten.to.dtype"]
    assert all(graph.meta(next(node.refs())).dtype != node.outputs[0].dtype for node in casts)
    assert in_precision(zoo_graph("gpt2-demo"), "fp32").graph_hash == zoo_graph("gpt2-demo").graph_hash


def test_a_cast_graph_reads_back_from_its_document() -> None:
    graph = in_precision(zoo_graph("gpt2-demo"), "bf16-mixed")
    read = from_dict(json.loads(json.dumps(graph.to_dict())))
    assert read.graph_hash == graph.graph_hash
    assert [leaf.meta for leaf in read.parameters] == [leaf.meta for leaf in graph.parameters]
    assert in_precision(read, "bf16-mixed") is read
    with pytest.raises(InputError, match="precision"):
        in_precision(read, "fp32")


def test_a_plan_s_graph_is_found_by_the_hash_of_the_captured_one() -> None:
    captured = zoo_graph("gpt2-demo")
    document = {"provenance": {"graph_hash": captured.graph_hash}, "options": {"precision": "bf16-mixed"}}
    mixed = planned_graph(captured, document)
    assert planned_graph(mixed, document) is mixed
    assert planned_graph(captured, {**document, "options": {}}) is captured
    with pytest.raises(InputError, match="the plan's graph"):
        planned_graph(zoo_graph("mlp-small"), document)


@pytest.mark.parametrize("dtype", ("bfloat16", "float16", "float64"))
def test_constants_round_as_torch_rounds_them_and_finite_ones_stay_finite(dtype: str) -> None:
    values = torch.randn(999, generator=torch.Generator().manual_seed(0)) * 2.0 ** torch.arange(-99, 900).remainder(60)
    values = torch.cat([values.clamp(-6e4, 6e4), torch.tensor([0.0, -0.0, float("inf")])])
    cast = cast_constant(make_constant("c", values), dtype)
    wanted = make_constant("c", values.to(getattr(torch, dtype)))
    assert cast == wanted
    mask = cast_constant(make_constant("m", torch.full((2,), torch.finfo(torch.float32).min)), dtype)
    back = cast_constant(mask, "float64")
    assert bool(torch.isfinite(constant_tensor(back)).all())


def test_gradients_narrower_or_wider_than_the_parameter_are_counted_by_their_own_bytes() -> None:
    meta = ParameterMeta((6,), "bfloat16", "float32", "float32")
    assert (meta.num_bytes, meta.gradient_bytes, meta.optimizer_width) == (12, 24, 4)
    plain = TensorMeta((6,), "bfloat16")
    assert (plain.gradient_bytes, plain.optimizer_width) == (12, 4)
