"""Bags of embeddings of equal length: an embedding and a reduction of each bag, which have sharding rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autosbp.graph.ir import LogicalGraph, Node, Ref, TensorMeta
from autosbp.graph.passes._constants import evaluate_constants
from autosbp.graph.passes._op_rewrites import NodeBuilder, argument, rewrite
from autosbp.graph.symbolic_dims import evaluate

_OPS = ("aten.embedding_bag.padding_idx", "aten.embedding_bag.default")
_SUM, _MEAN, _MAX = 0, 1, 2


def explicit_embedding_bags(graph: LogicalGraph) -> LogicalGraph:
    """Replace ``embedding_bag`` whose bags are the rows of a matrix of indices; others stay, and are refused later."""
    if not any(node.op in _OPS for node in graph.nodes):
        return graph
    bags = [node for node in graph.nodes if node.op in _OPS]
    offsets = {node.args[2].name for node in bags}
    found = {batch: evaluate_constants(graph, batch, offsets) for batch in (2, 3)}
    lengths = {node.name: _bag_length(graph, node, found) for node in bags}
    others = {ref.name for node in graph.nodes for ref in node.refs() if ref.index}

    def change(build: NodeBuilder, node: Node) -> Ref | None:
        scaled = argument(node, 3, False, "scale_grad_by_freq")
        length = lengths[node.name]
        return None if node.name in others or scaled or length is None else _bag(build, node, length)

    return rewrite(graph, dict.fromkeys(_OPS, change))


def _bag_length(graph: LogicalGraph, node: Node, found: Mapping[int, Mapping[str, Any]]) -> int | None:
    """The length that all bags have, from the offsets at several batch sizes; None if there is no such length."""
    lengths = set()
    for batch, offsets in found.items():
        sizes = dict.fromkeys(graph.symbols, batch)
        (number,) = (evaluate(dim, sizes) for dim in graph.meta(node.args[1]).shape)
        bags = evaluate(node.outputs[0].shape[0], sizes)
        starts = offsets[node.args[2].name].tolist() if node.args[2].name in offsets else []
        length = number // bags if bags else 0
        ends = starts[:bags] == list(range(0, number, length or 1)) and starts[bags:] in ([], [number])
        if number != bags * length or not ends:
            return None
        lengths.add(length)
    return lengths.pop() if len(lengths) == 1 else None


def _bag(build: NodeBuilder, node: Node, length: int) -> Ref:
    table, indices = node.args[:2]
    bags, width = node.outputs[0].shape
    dtype = build.meta(table).dtype
    padding = argument(node, 8, None, "padding_idx")
    ids = build.reshape(indices, (bags, length))
    found = build.op(
        "embedding.default", table, ids, *(() if padding in (None, -1) else (padding,)),
        shape=(bags, length, width), dtype=dtype,
    )  # fmt: skip
    weights = argument(node, 6, None, "per_sample_weights")
    if weights is not None:
        scale = build.reshape(weights, (bags, length, 1))
        found = build.op("mul.Tensor", found, scale, shape=(bags, length, width), dtype=dtype)
    kept = None if padding in (None, -1) else build.same("ne.Scalar", ids, padding, dtype="bool")
    return _REDUCTIONS[argument(node, 4, _SUM, "mode")](build, found, kept)


def _sum(build: NodeBuilder, found: Ref, kept: Ref | None) -> Ref:
    bags, length, width = build.shape(found)
    dtype = build.meta(found).dtype
    if kept is not None:
        column = build.cast(build.reshape(kept, (bags, length, 1)), dtype)
        found = build.op("mul.Tensor", found, column, shape=(bags, length, width), dtype=dtype)
    return build.op("sum.dim_IntList", found, (1,), False, shape=(bags, width), dtype=dtype)


def _mean(build: NodeBuilder, found: Ref, kept: Ref | None) -> Ref:
    """The mean of the entries that are not padding; 0 of a bag that has none."""
    bags, length, _ = build.shape(found)
    total = _sum(build, found, kept)
    if kept is None:
        return build.same("div.Tensor", total, length)
    dtype = build.meta(found).dtype
    number = build.op("sum.dim_IntList", build.cast(kept, dtype), (1,), True, shape=(bags, 1), dtype=dtype)
    least_one = build.same("clamp_min.default", number, 1)
    return build.same("div.Tensor", total, least_one)


def _max(build: NodeBuilder, found: Ref, kept: Ref | None) -> Ref:
    """The largest of the entries that are not padding; 0 of a bag that has none. One of equal entries has the gradient."""
    bags, length, width = build.shape(found)
    dtype = build.meta(found).dtype
    if kept is not None:
        gone = build.same("logical_not.default", build.reshape(kept, (bags, length, 1)))
        found = build.op("masked_fill.Scalar", found, gone, float("-inf"), shape=(bags, length, width), dtype=dtype)
    metas = TensorMeta((bags, width), dtype), TensorMeta((bags, width), "int64")
    largest = build.node_with(metas, "max.dim", (found, 1))
    if kept is None:
        return largest
    empty = build.op("any.dim", kept, 1, True, shape=(bags, 1), dtype="bool")
    return build.same("masked_fill.Scalar", largest, build.same("logical_not.default", empty), 0.0)


_REDUCTIONS: Mapping[int, Callable[[NodeBuilder, Ref, Ref | None], Ref]] = {_SUM: _sum, _MEAN: _mean, _MAX: _max}
