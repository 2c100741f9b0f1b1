"""Who shares a boxing: consumers of one tensor that read it the same way take the same boxed copy.

Sharing matters for gradients: they are summed before they are communicated. Query, key and value projections that read
one normalised input are one group, as are gate and up projections.
"""

from __future__ import annotations

from autosbp.graph.ir import LogicalGraph, Node

_NO_GRADIENT = "~"


def boxing_group(graph: LogicalGraph, node: Node, position: int) -> str:
    """The label that equal ways of reading a tensor share: the op and the argument's position in ``node.refs()``, and
    whether the reader sends a gradient back: a mask made of a weight does not."""
    return f"{node.op}#{position}{'' if node.name in graph.differentiable else _NO_GRADIENT}"


def sends_gradient(group: str) -> bool:
    """Whether the readers of this group send a gradient back, where the value has one."""
    return not group.endswith(_NO_GRADIENT)
