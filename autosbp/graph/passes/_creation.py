"""Creation ops such as ``zeros_like`` take only a shape from their operand: make them independent constants."""

from __future__ import annotations

from dataclasses import replace

from autosbp.graph.ir import Arg, DType, LogicalGraph, Node, Sym, TensorMeta

_VALUES = {"zeros_like": 0, "ones_like": 1, "new_zeros": 0, "new_ones": 1, "empty_like": 0, "new_empty": 0}
_VALUE_POSITIONS = {"full_like": 1, "new_full": 2}


def canonicalize_creation(graph: LogicalGraph) -> LogicalGraph:
    """Replace ``zeros_like(x)``, ``x.new_full(size, v)`` and similar ops by ``full(size, v, dtype)``."""
    nodes = [_plain(node) if node.op.startswith("aten.") else node for node in graph.nodes]
    return replace(graph, nodes=tuple(nodes))


def _plain(node: Node) -> Node:
    short = node.op.split(".")[1]
    if short in _VALUES:
        value: Arg = _VALUES[short]
    elif short in _VALUE_POSITIONS and not hasattr(node.args[_VALUE_POSITIONS[short]], "name"):
        value = node.args[_VALUE_POSITIONS[short]]
    else:
        return node
    meta: TensorMeta = node.outputs[0]
    sizes = tuple(dim if isinstance(dim, int) else Sym(dim) for dim in meta.shape)
    if meta.dtype == "bool":
        value = bool(value)
    return replace(node, op="aten.full.default", args=(sizes, value), kwargs={"dtype": DType(meta.dtype)})
