"""Upper bounds of integer inputs, read off the graph: what indexes a table of n rows is below n."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from autosbp.graph.ir import Arg, LogicalGraph, Node, Ref, TensorMeta

_MOVES = frozenset(
    f"aten.{name}" for name in (
        "reshape.default", "permute.default", "expand.default", "slice.Tensor", "to.dtype", "cat.default",
        "constant_pad_nd.default", "masked_fill.Scalar", "masked_fill.Tensor", "slice_scatter.default",
        "select_scatter.default", "flip.default", "roll.default", "detach.default",
    )
)  # fmt: skip
"""Ops whose output holds elements of their float and integer operands, unchanged."""
_ADDS = frozenset(("aten.add.Tensor", "aten.add.Scalar"))


def with_bounds(graph: LogicalGraph) -> LogicalGraph:
    """``graph`` with ``high`` of each integer input no larger than any of its uses allows."""
    offsets: dict[Ref, dict[str, int]] = {}
    for leaf in graph.inputs:
        if not leaf.meta.is_float and leaf.meta.dtype != "bool":
            offsets[Ref(leaf.name)] = {leaf.name: 0}
    highs: dict[str, int] = {}
    for node in graph.nodes:
        for ref, limit in _limits(graph, node):
            for name, offset in offsets.get(ref, {}).items():
                highs[name] = min(highs.get(name, limit - offset), limit - offset)
        for name, offset in _carried(node, offsets).items():
            offsets.setdefault(Ref(node.name), {})[name] = offset
    inputs = []
    for leaf in graph.inputs:
        found = highs.get(leaf.name)
        if found is not None and found >= 1 and (leaf.high is None or found < leaf.high):
            leaf = replace(leaf, high=found)
        inputs.append(leaf)
    return replace(graph, inputs=tuple(inputs))


def _carried(node: Node, offsets: Mapping[Ref, Mapping[str, int]]) -> dict[str, int]:
    """The inputs whose elements, plus an offset, are among the node's; the largest offset of each."""
    added = 0
    if node.op in _ADDS:
        numbers = [arg for arg in node.args[:2] if type(arg) is int]
        if len(numbers) != 1:
            return {}
        added = numbers[0]
    elif node.op == "aten.where.self":
        node = replace(node, args=node.args[1:])
    elif node.op not in _MOVES:
        return {}
    found: dict[str, int] = {}
    for ref in node.refs():
        for name, offset in offsets.get(ref, {}).items():
            found[name] = max(found.get(name, offset + added), offset + added)
    return found


def _limits(graph: LogicalGraph, node: Node) -> Iterator[tuple[Ref, int]]:
    """Operands that pick along a dim, each with the dim's size; and labels that are 0 or 1."""
    for ref, size in _PICKS[node.op](graph, node) if node.op in _PICKS else ():
        if isinstance(ref, Ref) and isinstance(size, int):
            yield ref, size


_Picks = Iterator[tuple[Arg, Arg]]


def _shape(graph: LogicalGraph, ref: Ref) -> tuple[int | str, ...]:
    meta: TensorMeta = graph.meta(ref)
    return meta.shape


def _embedding(graph: LogicalGraph, node: Node) -> _Picks:
    yield node.args[1], _shape(graph, node.args[0])[0]


def _along(graph: LogicalGraph, node: Node) -> _Picks:
    shape = _shape(graph, node.args[0])
    yield node.args[2], shape[node.args[1]] if shape else None


def _index(graph: LogicalGraph, node: Node) -> _Picks:
    yield from zip(node.args[1], _shape(graph, node.args[0]), strict=False)


def _one_hot(_graph: LogicalGraph, node: Node) -> _Picks:
    yield node.args[0], node.args[1] if len(node.args) > 1 else None


def _binary(_graph: LogicalGraph, node: Node) -> _Picks:
    yield node.args[1], 2


_PICKS: Mapping[str, Callable[[LogicalGraph, Node], _Picks]] = {
    "aten.embedding.default": _embedding,
    "aten.gather.default": _along,
    "aten.index_select.default": _along,
    "aten.scatter.src": _along,
    "aten.scatter.value": _along,
    "aten.scatter_add.default": _along,
    "aten.index_add.default": _along,
    "aten.index.Tensor": _index,
    "aten.index_put.default": _index,
    "aten.one_hot.default": _one_hot,
    "aten.binary_cross_entropy.default": _binary,
    "aten.binary_cross_entropy_with_logits.default": _binary,
}
