"""Products on flattened rows, and written-out gelu."""

from __future__ import annotations

import pytest

from autosbp.graph.ir import Sym
from autosbp.graph.passes._cleanup import drop_dead
from autosbp.graph.passes._fuse import fuse_gelu
from autosbp.graph.passes._linear import view_addmm_to_linear
from tests.graph.passes.harness import BATCH, LINEAR, Shape, W, X, check, graph_of, node


@pytest.mark.parametrize("bias", [True, False])
def test_a_product_on_flattened_rows_becomes_a_linear(bias: bool) -> None:
    operands = ("@b", "@flat", "@c") if bias else ("@flat", "@c")
    nodes = [
        node("flat", "reshape.default", "@x", (Sym("3*batch"), 8), shape=("3*batch", 8)),
        node("rows", "addmm.default" if bias else "mm.default", *operands, shape=("3*batch", 6)),
        node("y", "reshape.default", "@rows", (BATCH, 3, 6), shape=("batch", 3, 6)),
        node("z", "pow.Tensor_Scalar", "@y", 2, shape=("batch", 3, 6)),
    ]
    leaves: dict[str, Shape] = {"c": (8, 6), "b": (6,)} if bias else {"c": (8, 6)}
    changed = check(
        graph_of(nodes, leaves, X), view_addmm_to_linear, ["linear.default", "pow.Tensor_Scalar", "sum.default"]
    )
    assert {leaf.name: leaf.transforms for leaf in changed.parameters}["c.t"] == (("t",),)


def test_gelu_written_out_becomes_one_op() -> None:
    shape: Shape = ("batch", 3, 6)
    nodes = [
        LINEAR,
        node("half", "mul.Tensor", "@y", 0.5, shape=shape),
        node("cube", "pow.Tensor_Scalar", "@y", 3.0, shape=shape),
        node("part", "mul.Tensor", "@cube", 0.044715, shape=shape),
        node("inner", "add.Tensor", "@y", "@part", shape=shape),
        node("scaled", "mul.Tensor", "@inner", 0.7978845608028654, shape=shape),
        node("tanh", "tanh.default", "@scaled", shape=shape),
        node("one", "add.Tensor", "@tanh", 1.0, shape=shape),
        node("gelu", "mul.Tensor", "@half", "@one", shape=shape),
    ]
    graph = graph_of(nodes, W, X)
    check(graph, lambda given: drop_dead(fuse_gelu(given)), ["linear.default", "gelu.default", "sum.default"])
