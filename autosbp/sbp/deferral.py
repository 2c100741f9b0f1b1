"""Which ops leave the gradients of their weights for later, where a schedule wants that (zero bubble)."""

from __future__ import annotations

from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.sbp.program import Op

LINEAR = "aten.linear.default"


def defers_weights(graph: LogicalGraph, item: Op) -> bool:
    """A linear op in the gradient's way, whose parameters are read as they are stored: its weights' gradients are added
    to those of the parameters themselves, outside of autograd."""
    node = item.node
    stored = all(isinstance(read, Ref) and read.name in graph.parameter_names for read in item.reads[1:])
    return node.op == LINEAR and node.name in graph.differentiable and stored
