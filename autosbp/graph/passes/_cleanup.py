"""Remove dead nodes and no-ops, and assign canonical names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autosbp.graph.ir import LogicalGraph, Node, Ref
from autosbp.graph.passes._graph_edits import rebuild

_ALIASES = frozenset(
    f"aten.{name}"
    for name in ("contiguous.default", "clone.default", "alias.default", "detach_.default", "lift_fresh_copy.default")
)
_SAME_SHAPE = frozenset(
    f"aten.{name}" for name in ("to.dtype", "reshape.default", "expand.default", "adaptive_avg_pool2d.default")
)
_RANDOM = frozenset(("aten.dropout.default", "aten.feature_dropout.default", "aten.alpha_dropout.default"))


def drop_dead(graph: LogicalGraph) -> LogicalGraph:
    """Keep only nodes, parameters, constants and functions that the loss depends on."""
    live = {graph.loss.name}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node.name in live:
            kept.append(node)
            live.update(ref.name for ref in node.refs())
    return replace(
        graph,
        nodes=tuple(reversed(kept)),
        parameters=tuple(leaf for leaf in graph.parameters if leaf.name in live),
        constants=tuple(leaf for leaf in graph.constants if leaf.name in live),
        functions={name: each for name, each in graph.functions.items() if any(node.op == name for node in kept)},
    )


def drop_no_ops(graph: LogicalGraph) -> LogicalGraph:
    """Remove ops that return an operand: copies, full slices, casts to the same dtype, dropout of 0, equal shapes."""
    table: dict[Ref, Ref] = {}
    kept = []
    for node in graph.nodes:
        source = next(node.refs(), None)
        if node.op == "aten.slice_scatter.default" and _replaces_all(graph, node):
            table[Ref(node.name)] = node.args[1]
        elif source is not None and _is_no_op(graph, node, source):
            table[Ref(node.name)] = source
        else:
            kept.append(node)
    return rebuild(graph, kept, table)


def _replaces_all(graph: LogicalGraph, node: Node) -> bool:
    """Whether a slice that is written covers its whole dim: ``x[:, 1:] = y`` writes one such slice of dim 0."""
    return graph.meta(node.args[0]) == graph.meta(node.args[1])


def _is_no_op(graph: LogicalGraph, node: Node, source: Ref) -> bool:
    if len(node.outputs) != 1:
        return False
    same = graph.meta(source) == node.outputs[0]
    if node.op in _ALIASES:
        return True
    if node.op in _RANDOM:
        return node.args[1] == 0 or node.args[2] is False
    if node.op == "aten.slice.Tensor":
        start = node.args[2] if len(node.args) > 2 else None
        step = node.args[4] if len(node.args) > 4 else 1
        return same and start in (None, 0) and step == 1
    if node.op in _SAME_SHAPE:
        return same
    if node.op == "aten.permute.default":
        return tuple(node.args[1]) == tuple(range(len(node.args[1])))
    if node.op in ("aten.add.Tensor", "aten.sub.Tensor"):
        return same and node.args[1] == 0 and not node.kwargs
    return False


def rename(graph: LogicalGraph) -> LogicalGraph:
    """Name nodes by op and order (``linear_0``), so that equal graphs have equal documents."""
    counts: dict[str, int] = {}
    table: dict[str, str] = {}
    taken = {leaf.name for leaf in graph.leaves}
    nodes = []
    for node in graph.nodes:
        short = node.op.split(".")[1].strip("_")
        while True:
            counts[short] = counts.get(short, -1) + 1
            name = f"{short}_{counts[short]}"
            if name not in taken:
                break
        table[node.name] = name
        nodes.append(replace(_renamed(node, table), name=name))
    return replace(graph, nodes=tuple(nodes), loss=Ref(table[graph.loss.name], graph.loss.index))


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    return node.map_args(lambda arg: Ref(names.get(arg.name, arg.name), arg.index) if isinstance(arg, Ref) else arg)
