"""Who shares a boxing: consumers of one tensor that read it the same way take the same boxed copy.

Sharing matters for gradients: they are summed before they are communicated. Query, key and value projections that read
one normalised input are one group, as are gate and up projections.
"""

from __future__ import annotations

from collections.abc import Mapping

from autosbp.graph.ir import LogicalGraph, Node, Ref

Use = tuple[str, int]
"""A node's name and the position of a tensor argument in ``node.refs()``."""


def boxing_group(node: Node, position: int) -> str:
    """The label that equal ways of reading a tensor share: the op and the argument's position."""
    return f"{node.op}#{position}"


def uses(graph: LogicalGraph) -> Mapping[Ref, list[Use]]:
    """Every read of every value, in graph order."""
    table: dict[Ref, list[Use]] = {}
    for node in graph.nodes:
        for position, ref in enumerate(node.refs()):
            table.setdefault(ref, []).append((node.name, position))
    return table
