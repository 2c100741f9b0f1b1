"""Dead nodes, ops that do nothing, names."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autosbp.graph.ir import DType
from autosbp.graph.passes._cleanup import drop_dead, drop_no_ops, rename
from autosbp.graph.to_fx import make_constant
from tests.graph.passes.harness import BATCH, LINEAR, Shape, W, X, check, graph_of, node, ops


def test_dead_nodes_parameters_and_constants_go() -> None:
    dead = [node("dead", "relu.default", "@y", shape=("batch", 3, 6)), node("more", "neg.default", "@dead", shape=(6,))]
    unused = make_constant("unused", torch.zeros(2))
    graph = graph_of(
        [LINEAR, *dead, node("z", "relu.default", "@y", shape=("batch", 3, 6))], {**W, "e": (5, 8)}, X, [unused]
    )
    changed = drop_dead(graph)
    assert ops(changed) == ["linear.default", "relu.default", "sum.default"]
    assert changed.parameter_names == {"w", "b"}
    assert changed.constants == ()


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("contiguous.default", ()),
        ("clone.default", ()),
        ("dropout.default", (0.0, True)),
        ("dropout.default", (0.5, False)),
        ("slice.Tensor", (1, 0, None, 1)),
        ("slice.Tensor", (1,)),
        ("to.dtype", (DType("float64"),)),
        ("reshape.default", ((BATCH, 3, 6),)),
        ("expand.default", ((BATCH, 3, 6),)),
        ("permute.default", ((0, 1, 2),)),
        ("add.Tensor", (0,)),
    ],
)
def test_ops_that_return_their_input_go(op: str, args: tuple[Any, ...]) -> None:
    graph = graph_of([LINEAR, node("same", op, "@y", *args, shape=("batch", 3, 6))], W, X)
    check(graph, drop_no_ops, ["linear.default", "sum.default"])


@pytest.mark.parametrize(
    ("op", "args", "shape"),
    [
        ("dropout.default", (0.5, True), ("batch", 3, 6)),
        ("slice.Tensor", (2, 1, None, 1), ("batch", 3, 5)),
        ("permute.default", ((0, 2, 1),), ("batch", 6, 3)),
        ("add.Tensor", (1,), ("batch", 3, 6)),
        ("to.dtype", (DType("float32"),), ("batch", 3, 6)),
    ],
)
def test_ops_that_do_something_stay(op: str, args: tuple[Any, ...], shape: Shape) -> None:
    dtype = "float32" if op == "to.dtype" else "float64"
    graph = graph_of([LINEAR, node("other", op, "@y", *args, shape=shape, dtype=dtype)], W, X)
    assert ops(drop_no_ops(graph)) == ops(graph)


def test_nodes_are_named_by_op_and_order_around_taken_names() -> None:
    parameters: dict[str, Shape] = {"w": (6, 8), "relu_0": (6,)}
    nodes = [
        node("q", "linear.default", "@x", "@w", "@relu_0", shape=("batch", 3, 6)),
        node("r", "relu.default", "@q", shape=("batch", 3, 6)),
        node("s", "relu.default", "@r", shape=("batch", 3, 6)),
    ]
    names = [each.name for each in rename(graph_of(nodes, parameters, X)).nodes]
    assert names == ["linear_0", "relu_1", "relu_2", "sum_0"]
