"""Helpers that the passes share: substitute values and create nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from autosbp.graph.ir import Arg, LogicalGraph, Node, Ref, TensorMeta


def substitute(arg: Arg, table: Mapping[Ref, Ref]) -> Arg:
    """Follow ``table`` from the leaf ``arg`` to the final replacement."""
    while isinstance(arg, Ref) and arg in table:
        arg = table[arg]
    return arg


def rebuild(graph: LogicalGraph, nodes: Sequence[Node], table: Mapping[Ref, Ref]) -> LogicalGraph:
    """The graph with these nodes, and every use of a key of ``table`` replaced by its value."""
    changed = tuple(node.map_args(lambda arg: substitute(arg, table)) for node in nodes)
    return replace(graph, nodes=changed, loss=cast(Ref, substitute(graph.loss, table)))


def producers(graph: LogicalGraph) -> dict[str, Node]:
    return {node.name: node for node in graph.nodes}


def consumers(graph: LogicalGraph) -> dict[Ref, list[Node]]:
    """The nodes that read each value, in order, once per reading node."""
    table: dict[Ref, list[Node]] = {}
    for node in graph.nodes:
        for ref in dict.fromkeys(node.refs()):
            table.setdefault(ref, []).append(node)
    return table


def simple_node(name: str, op: str, args: tuple[Arg, ...], shape: tuple[int | str, ...], dtype: str) -> Node:
    """A node with one output and no keyword arguments."""
    return Node(name, op, args, {}, (TensorMeta(shape, dtype),))
