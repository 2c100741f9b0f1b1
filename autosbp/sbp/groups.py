"""Who shares a boxing: consumers of one tensor that read it the same way take the same boxed copy.

Sharing matters for gradients: they are summed before they are communicated. Query, key and value projections that read
one normalised input are one group, as are gate and up projections.
"""

from __future__ import annotations

from autosbp.graph.ir import Node


def boxing_group(node: Node, position: int) -> str:
    """The label that equal ways of reading a tensor share: the op and the argument's position in ``node.refs()``."""
    return f"{node.op}#{position}"
