"""Values that depend on shapes only."""

from __future__ import annotations

import pytest
import torch

from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.graph.passes._cleanup import drop_dead
from autosbp.graph.passes._constants import MAX_FOLDED_TEXT, fold_constants, share_constants
from autosbp.graph.to_fx import make_constant
from tests.graph.passes.harness import BATCH, LINEAR, Shape, W, X, check, graph_of, node, ops


def test_values_of_shapes_only_become_constants() -> None:
    nodes = [
        LINEAR,
        node("steps", "arange.default", 6, shape=(6,), dtype="int64"),
        node("row", "reshape.default", "@steps", (1, 6), shape=(1, 6), dtype="int64"),
        node("rows", "expand.default", "@row", (BATCH, 6), shape=("batch", 6), dtype="int64"),
        node("lifted", "reshape.default", "@rows", (BATCH, 1, 6), shape=("batch", 1, 6), dtype="int64"),
        node("z", "mul.Tensor", "@y", "@lifted", shape=("batch", 3, 6)),
        node("u", "add.Tensor", "@z", "@steps", shape=("batch", 3, 6)),
    ]
    graph = graph_of(nodes, W, X)
    changed = check(
        graph,
        lambda given: drop_dead(fold_constants(given)),
        ["linear.default", "expand.default", "mul.Tensor", "add.Tensor", "sum.default"],
    )
    assert {leaf.name: leaf.meta.shape for leaf in changed.constants} == {"steps": (6,), "lifted.row": (1, 1, 6)}


def test_values_that_do_not_compress_stay_ops() -> None:
    noise = make_constant("noise", torch.rand(1, 1, MAX_FOLDED_TEXT, generator=torch.Generator().manual_seed(0)))
    shape: Shape = ("batch", 1, MAX_FOLDED_TEXT)
    nodes = [
        LINEAR,
        node("wide", "cos.default", "@noise", shape=(1, 1, MAX_FOLDED_TEXT), dtype="float32"),
        node("rows", "expand.default", "@wide", (BATCH, 1, MAX_FOLDED_TEXT), shape=shape, dtype="float32"),
        node("first", "slice.Tensor", "@rows", 2, 0, 6, 1, shape=("batch", 1, 6), dtype="float32"),
        node("sums", "sum.dim_IntList", "@y", (1, 2), shape=("batch",)),
        node("z", "mul.Tensor", "@rows", "@lifted", shape=shape),
    ]
    nodes.insert(5, node("lifted", "reshape.default", "@sums", (BATCH, 1, 1), shape=("batch", 1, 1)))
    graph = graph_of(nodes, W, X, [noise])
    check(graph, fold_constants, ops(graph))


def test_equal_constant_nodes_become_one() -> None:
    views = [node(f"v{at}", "reshape.default", "@steps", (1, 6), shape=(1, 6), dtype="int64") for at in range(2)]
    nodes = [
        LINEAR,
        node("steps", "arange.default", 6, shape=(6,), dtype="int64"),
        *views,
        node("z", "mul.Tensor", "@y", "@v0", shape=("batch", 3, 6)),
        node("u", "add.Tensor", "@z", "@v1", shape=("batch", 3, 6)),
    ]
    expected = ["linear.default", "arange.default", "reshape.default", "mul.Tensor", "add.Tensor", "sum.default"]
    check(graph_of(nodes, W, X), share_constants, expected)


def attention(mask: torch.Tensor) -> LogicalGraph:
    nodes = [
        LINEAR,
        node("same", "logical_and.default", "@mask", "@mask", shape=tuple(mask.shape), dtype="bool"),
        node("z", "scaled_dot_product_attention.default", "@y", "@y", "@y", "@same", shape=("batch", 3, 6)),
    ]
    return graph_of(nodes, W, X, [make_constant("mask", mask)])


def test_a_lower_triangular_mask_becomes_is_causal() -> None:
    graph = attention(torch.ones(1, 3, 3, dtype=torch.bool).tril())
    expected = ["linear.default", "scaled_dot_product_attention.default", "sum.default"]
    changed = check(graph, lambda given: drop_dead(fold_constants(given)), expected)
    assert changed.nodes[1].args[3:6] == (None, 0.0, True)


@pytest.mark.parametrize("mask", [torch.ones(3, 3, dtype=torch.bool), torch.ones(1, 1, dtype=torch.bool)])
def test_other_masks_stay_masks(mask: torch.Tensor) -> None:
    changed = fold_constants(attention(mask))
    assert changed.nodes[-2].args[3] == Ref("same")
