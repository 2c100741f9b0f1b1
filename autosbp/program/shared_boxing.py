"""Shared boxings: consumers that read a tensor in the same way use the same boxed copy.

Sharing sums gradients before they are communicated. Query, key and value projections that read one normalised input are
one group, as are gate and up projections.
"""

from __future__ import annotations

from autosbp.graph.ir import LogicalGraph, Node

_NO_GRADIENT = "~"


def boxing_group(graph: LogicalGraph, node: Node, position: int) -> str:
    """Label shared by consumers that read a tensor in the same way.

    It consists of the op, the argument's position in ``node.refs()``, and whether the reader sends a gradient back (a
    mask computed from a weight does not).
    """
    return f"{node.op}#{position}{'' if node.name in graph.differentiable else _NO_GRADIENT}"


def sends_gradient(group: str) -> bool:
    """Whether the readers of this group send a gradient back, if the value has one."""
    return not group.endswith(_NO_GRADIENT)
