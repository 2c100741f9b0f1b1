"""What torch exports to ONNX is captured as the module itself is: the same loss, gradients, parameters and FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from onnx import TensorProto, helper, load_from_string, numpy_helper
from torch import nn

from autosbp import api
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.onnx import capture_onnx, read_onnx
from autosbp.graph.onnx._module import OPS
from autosbp.graph.onnx._op_names import KNOWN_OPS
from autosbp.graph.to_fx import initial_parameter
from autosbp.report.model_estimate import estimate
from tests.graph.numerics import run_graph
from tests.graph.onnx_models import Perceptron, Residual, Transformer, exported, ids, images, trained

pytestmark = pytest.mark.integration


class Trained(nn.Module):
    """A module with the loss that is put behind an ONNX model without one."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.module(x).flatten(0, -2), labels.flatten())


def weights_of(data: bytes) -> dict[str, torch.Tensor]:
    return {
        one.name: torch.from_numpy(numpy_helper.to_array(one).copy()).requires_grad_()
        for one in load_from_string(data).graph.initializer
        if one.data_type == TensorProto.FLOAT
    }


def loss_of(graph: LogicalGraph, data: bytes, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, float]:
    """The graph's loss with the file's weights, and the norm of all its gradients."""
    loss, grads = run_graph(graph, weights_of(data), batch)
    return loss, float(sum(grad.square().sum() for grad in grads.values()) ** 0.5)


def expected_of(module: nn.Module, inputs: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, float]:
    loss = module(*inputs.values())
    loss.backward()
    return loss, float(sum(one.grad.square().sum() for one in module.parameters() if one.grad is not None) ** 0.5)


def num_parameters(graph: LogicalGraph) -> int:
    return sum(prod(leaf.meta.sizes) for leaf in graph.parameters)


def flops(graph: LogicalGraph) -> float:
    return float(estimate(graph, 8)["flops_per_sample_forward"])


CASES = {
    "perceptron": (Perceptron, {"x": torch.randn(4, 8)}, True),
    "perceptron, new exporter": (Perceptron, {"x": torch.randn(4, 8)}, True),
    "convolutions": (Residual, {"x": images()}, True),
    "transformer": (Transformer, {"ids": ids()}, False),
    "transformer, new exporter": (Transformer, {"ids": ids()}, False),
}

MASKED = {Perceptron: 0, Residual: 0, Transformer: 2 * (2 * 2 * 6 * 6 * 8) / 2}
"""FLOPs of a sample that a causal kernel leaves out: half of both products of attention, which an ONNX file has whole."""


@pytest.mark.some(2)
@pytest.mark.parametrize("name", CASES)
def test_a_file_that_torch_exports_is_captured_as_the_module_is(name: str) -> None:
    make, inputs, training = CASES[name]
    module = trained(make()).train(training)
    data = exported(module, inputs, new="new" in name)
    graph = capture_onnx(read_onnx(data), "m")
    first = next(iter(inputs))
    sizes = {leaf.name: leaf.meta.shape for leaf in graph.inputs}
    assert sizes[first] == ("batch", *inputs[first].shape[1:])
    labels = torch.randint(4, tuple(3 if dim == "batch" else int(dim) for dim in sizes["labels"]))
    batch = {first: inputs[first][:3], "labels": labels}
    whole = Trained(module)
    found, expected = loss_of(graph, data, batch), expected_of(whole, batch)
    assert found[0].item() == pytest.approx(expected[0].item(), rel=2e-5)
    assert found[1] == pytest.approx(expected[1], rel=2e-4)
    assert num_parameters(graph) == sum(one.numel() for one in module.parameters())
    captured = api.capture_module(whole.train(training), {"x": inputs[first], "labels": _labels(graph)}, name="m")
    assert flops(graph) == flops(captured) + MASKED[make]


def _labels(graph: LogicalGraph) -> torch.Tensor:
    shape = next(leaf.meta.shape for leaf in graph.inputs if leaf.name == "labels")
    return torch.zeros(tuple(4 if dim == "batch" else int(dim) for dim in shape), dtype=torch.int64)


def test_a_model_with_its_loss_is_trained_for_that_loss() -> None:
    module = trained(Transformer()).eval()
    inputs = {"ids": ids(), "labels": ids()}
    data = exported(module, inputs, new=False)
    graph = capture_onnx(read_onnx(data))
    assert [(leaf.name, leaf.high) for leaf in graph.inputs] == [("ids", 32), ("labels", 32)]
    found, expected = loss_of(graph, data, inputs), expected_of(module, inputs)
    assert found[0].item() == pytest.approx(expected[0].item(), rel=2e-5)
    assert found[1] == pytest.approx(expected[1], rel=2e-4)


def test_dropout_and_batch_norm_are_those_of_training() -> None:
    dropped = capture_onnx(read_onnx(exported(trained(Transformer()).train(), {"ids": ids()}, new=False)))
    assert [node.args[1:] for node in dropped.nodes if node.op == "aten.dropout.default"] == [
        (pytest.approx(0.1), True)
    ]
    normed = capture_onnx(read_onnx(exported(trained(Residual()).train(), {"x": images()}, new=False)))
    assert sum(node.op == "aten.batch_norm.default" for node in normed.nodes) == 3


def test_weights_of_products_are_stored_as_layers_have_them() -> None:
    module = trained(Transformer()).eval()
    data = exported(module, {"ids": ids()}, new=False)
    graph = capture_onnx(read_onnx(data))
    named = {leaf.name: leaf for leaf in graph.parameters}
    scores = [leaf for leaf in named.values() if leaf.meta.shape == (32, 16) and leaf.transforms == (("t",),)]
    found = [initial_parameter(leaf, weights_of(data)) for leaf in scores]
    assert any(torch.equal(one, module.scores.weight) for one in found)


def test_a_plan_is_made_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "block.onnx"
    path.write_bytes(exported(trained(Transformer()), {"ids": ids()}, new=False))
    graph = api.capture(f"onnx:{path}")
    assert graph.name == "block" and "cross entropy" in graph.provenance["loss"]
    again = api.load_graph(graph.to_dict())
    assert again.graph_hash == graph.graph_hash
    plan = api.make_plan(graph, api.load_cluster("local:2x2"), options=api.PlanOptions(global_batch=8))
    assert plan.document["step_time_s"] > 0


def test_a_file_with_a_fixed_batch_is_captured_where_no_op_needs_that_batch() -> None:
    graph = capture_onnx(read_onnx(exported(Perceptron(), {"x": torch.randn(2, 8)}, new=False, free=False)))
    assert graph.inputs[0].meta.shape == ("batch", 8)
    with pytest.raises(InputError, match="export with a dynamic batch") as caught:
        capture_onnx(read_onnx(exported(Transformer(), {"ids": ids()[:2]}, new=False, free=False)))
    assert caught.value.field == "model.graph.input.ids"


def small(*nodes: Any, output: tuple[Any, ...] = ("batch", 3), shape: tuple[Any, ...] = ("batch", 4)) -> bytes:
    """A file of these nodes, from ``x`` to ``y``."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, output)
    w = helper.make_tensor("w", TensorProto.FLOAT, [4, 3], [0.5] * 12)
    graph = helper.make_graph(list(nodes), "small", [x], [y], [w])
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString())


def test_a_regression_is_trained_for_squared_differences() -> None:
    inputs = {"x": torch.randn(4, 8)}
    graph = capture_onnx(read_onnx(exported(nn.Linear(8, 1), inputs, new=False)))
    assert [(leaf.name, leaf.meta.shape) for leaf in graph.inputs] == [("x", ("batch", 8)), ("target", ("batch", 1))]


PRODUCT = helper.make_node("MatMul", ["x", "w"], ["y"])


@pytest.mark.parametrize(
    ("data", "field", "words"),
    [
        (small(helper.make_node("MatMul", ["x", "v"], ["y"])), "model.graph.node[0].input[1]", "'v'.*earlier value"),
        (small(PRODUCT, shape=("batch", 5)), "model.graph.node[0]", r"Linear of \[4, 5\], \[3, 4\].*incompatible operands"),
        (small(PRODUCT, shape=("batch", "length")), "model.graph.input[0].shape", "fixed sizes"),
        (small(PRODUCT, shape=()), "model.graph.input[0]", "dim 0 is the batch"),
        (small(helper.make_node("Softmax", ["x"], ["y"], axis=7)), "model.graph.node[0].axis", "Softmax: expected a dim of 2"),
        (small(helper.make_node("Reshape", ["x", "x"], ["y"])), "model.graph.node[0].input[1]", "depend on data"),
        (small(helper.make_node("ReduceSum", ["x"], ["y"], keepdims=1)), "model.graph.output[0]", "dim 0 is the batch"),
        (small(helper.make_node("Conv", ["x", "w"], ["y"])), "model.graph.node[0].input[0]", "1 to 3 spatial dims"),
        (small(helper.make_node("Shape", ["x"], ["y"])), "model.graph.output[0]", "depends on data"),
        (small(helper.make_node("Relu", ["x"], ["z"])), "model.graph.output", "output of a node"),
        (small(helper.make_node("Gelu", ["x"], ["y"], approximate="?")), "model.graph.node[0].approximate", "none, tanh"),
    ],
)  # fmt: skip
def test_what_cannot_be_captured_names_the_op_and_the_value(data: bytes, field: str, words: str) -> None:
    skeleton = read_onnx(data)
    with pytest.raises(InputError, match=words) as caught:
        capture_onnx(skeleton)
    assert caught.value.field == field


def test_ops_that_are_known_without_torch_are_those_that_are_read() -> None:
    assert {*OPS, "Constant"} - {"Linear"} == KNOWN_OPS
