"""Fused projections that come apart, and those that do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.graph.passes._unfuse import unfuse_split_linears
from autosbp.graph.to_fx import initial_parameter
from tests.graph.passes.harness import LINEAR, Head, W, X, captured, check, graph_of, node, ops

Transforms = list[tuple[object, ...]]


def test_a_fused_projection_becomes_one_linear_per_part() -> None:
    parts = [
        node(f"p{index}", "slice.Tensor", "@y", 2, start, start + width, 1, shape=("batch", 3, width))
        for index, (start, width) in enumerate([(0, 2), (2, 4)])
    ]
    product = node("z", "matmul.default", "@t", "@p1", shape=("batch", 2, 4))
    turn = node("t", "permute.default", "@p0", (0, 2, 1), shape=("batch", 2, 3))
    graph = graph_of([LINEAR, *parts, turn, product], W, X)
    expected = ["linear.default", "linear.default", "permute.default", "matmul.default", "sum.default"]
    changed = check(graph, unfuse_split_linears, expected)
    assert [leaf.meta.shape for leaf in changed.parameters] == [(2, 8), (2,), (4, 8), (4,)]


def test_a_linear_that_is_also_read_whole_stays() -> None:
    parts = [
        node(f"p{index}", "slice.Tensor", "@y", 2, start, start + 3, 1, shape=("batch", 3, 3))
        for index, start in enumerate((0, 3))
    ]
    whole = node("cat", "cat.default", (Ref("y"), Ref("p0"), Ref("p1")), 2, shape=("batch", 3, 12))
    graph = graph_of([LINEAR, *parts, whole], W, X)
    assert ops(unfuse_split_linears(graph)) == ops(graph)


class Attention(nn.Module):
    """Attention of 2 heads of 4 whose query, key and value are packed in one projection of 24, then a loss."""

    def __init__(self, unpack: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]], rows: int = 24) -> None:
        super().__init__()
        self.packed, self.out, self.unpack = nn.Linear(8, rows), nn.Linear(8, 6), unpack

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        mixed = F.scaled_dot_product_attention(*self.unpack(self.packed(x)))
        return F.cross_entropy(self.out(mixed.transpose(1, 2).reshape(*x.shape)).flatten(0, 1), labels.flatten())


def heads(*parts: Tensor) -> tuple[Tensor, ...]:
    return tuple(part.transpose(1, 2) for part in parts)


def turned(packed: Tensor) -> tuple[Tensor, ...]:
    """Every head's query, key and value one after another, split once heads stand before tokens."""
    return packed.view(*packed.shape[:2], 2, 12).transpose(1, 2).chunk(3, dim=-1)


def grouped(packed: Tensor) -> tuple[Tensor, ...]:
    """Two queries for the one key and value: ``b s (h d) -> b s h d``, the last two heads taken by a list."""
    apart = packed.view(*packed.shape[:2], 4, 4)
    query, key, value = apart[:, :, :-2], apart[:, :, [-2]], apart[:, :, [-1]]
    return heads(query, key.expand(query.shape), value.expand(query.shape))


BLOCKS: Transforms = [("blocks", 0, 2, start, start + 4) for start in (0, 4, 8)]
ROWS: Transforms = [("slice", 0, start, start + 8) for start in (0, 8, 16)]
PACKED: dict[str, tuple[Callable[[Tensor], tuple[Tensor, ...]], int, Transforms]] = {
    "(3 h d), chunks": (lambda y: heads(*(p.unflatten(-1, (2, 4)) for p in y.chunk(3, -1))), 24, ROWS),
    "(3 h d), unbind": (lambda y: y.view(*y.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0), 24, ROWS),
    "(h 3 d), select": (
        lambda y: heads(*(y.view(*y.shape[:2], 2, 3, 4)[..., part, :] for part in range(3))), 24, BLOCKS,
    ),
    "(h 3d), chunks": (turned, 24, BLOCKS),
    "((h+2) d), a list": (grouped, 16, [("slice", 0, 0, 8), ("slice", 0, 8, 12), ("slice", 0, 12, 16)]),
}  # fmt: skip


@pytest.mark.parametrize("name", PACKED)
def test_packed_qkv_is_unfused_behind_views(name: str) -> None:
    unpack, rows, transforms = PACKED[name]
    graph = captured(Attention(unpack, rows))
    for source in ("packed.weight", "packed.bias"):
        parts = [leaf for leaf in graph.parameters if leaf.source == source]
        assert [leaf.transforms for leaf in parts] == [(step,) for step in transforms]
    assert sum(each.op == "aten.linear.default" for each in graph.nodes) == 4


def test_parts_of_parts_come_apart_too() -> None:
    def loss(y: Tensor, _labels: Tensor) -> Tensor:
        one, two = y.view(*y.shape[:2], 3, 2).chunk(2, -1)
        first, rest = one.split([1, 2], dim=2)
        return ((first * rest).sum(2, keepdim=True) * two).square().sum()

    graph = captured(Head(loss, bias=False))
    found = {leaf.transforms for leaf in graph.parameters}
    assert found == {
        (("blocks", 0, 3, 0, 1), ("slice", 0, 0, 1)),
        (("blocks", 0, 3, 0, 1), ("slice", 0, 1, 3)),
        (("blocks", 0, 3, 1, 2),),
    }


def rotary(y: Tensor, _labels: Tensor) -> Tensor:
    """Half of each head turned, the other half as it is, and both joined again."""
    apart = y.view(*y.shape[:2], 3, 2)
    turn, keep = apart[..., :1], apart[..., 1:]
    return torch.cat((turn * 0.5 + 1.0, keep), dim=-1).square().sum()


def gap(y: Tensor, _labels: Tensor) -> Tensor:
    return (y[..., :2] * y[..., 3:5]).square().sum()


@pytest.mark.parametrize("loss", [rotary, gap])
def test_rejoined_or_incomplete_parts_stay_fused(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    graph = captured(Head(loss))
    assert [leaf.transforms for leaf in graph.parameters] == [(), ()]


class Twice(nn.Module):
    """One fused projection used twice."""

    def __init__(self, second: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.head, self.second = nn.Linear(8, 16), second

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002
        gate, up = self.head(x).chunk(2, -1)
        gate, up = self.second(self.head(gate * up))
        return (gate * up).square().sum()


def test_a_shared_weight_is_unfused_if_all_uses_are() -> None:
    alike = captured(Twice(lambda y: y.chunk(2, -1)))
    assert len(alike.parameters) == 4
    other = captured(Twice(lambda y: (y[..., :4], y[..., 4:8])))
    assert len(other.parameters) == 2


def parts_of(graph: LogicalGraph, source: Tensor) -> list[Tensor]:
    return [initial_parameter(leaf, {leaf.source: source}) for leaf in graph.parameters]


def test_blocks_are_rows_of_equal_place_in_each_block() -> None:
    graph = captured(Attention(turned))
    leaf = next(leaf for leaf in graph.parameters if leaf.transforms == (BLOCKS[1],))
    source = torch.arange(24.0 * 8).reshape(24, 8)
    expected = torch.cat([source[4:8], source[16:20]])
    assert torch.equal(initial_parameter(leaf, {leaf.source: source}), expected)
