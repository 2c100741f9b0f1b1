"""Split implementations: the collectives that happen inside an op whose normalised dim is split (DESIGN section 5).

Log-softmax over a split dim reduces the local maxima, then the local sums of exponentials; its backward reduces the
local sums of the gradient (OneFlow section 6.3.1). Embedding and gather over a split range need none: they give P.
"""

from __future__ import annotations

from dataclasses import dataclass

from autosbp.graph.ir import DTYPE_BYTES, LogicalGraph, Node
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.placement import NdSbp, local_shape


@dataclass(frozen=True, slots=True)
class InternalCollective:
    """One collective inside an op. ``phase`` is forward or backward."""

    phase: str
    kind: str
    num_bytes: int


def internal_collectives(
    graph: LogicalGraph, node: Node, out: NdSbp, axes: tuple[int, ...], mesh: Mesh
) -> tuple[InternalCollective, ...]:
    """The collectives, in order, of ``node`` with output layout ``out`` when ``axes`` split its whole dim."""
    if node.op != "aten.log_softmax.int" or not axes:
        return ()
    shape = local_shape(node.outputs[0].sizes, out, mesh)
    dim = node.args[1] % len(shape)
    rows = 1
    for at, size in enumerate(shape):
        rows *= 1 if at == dim else size
    num_bytes = rows * DTYPE_BYTES[node.outputs[0].dtype]
    phases = ("forward", "forward", *(("backward",) if node.name in graph.differentiable else ()))
    return tuple(InternalCollective(phase, "all_reduce", num_bytes) for phase in phases)


def split_axes_of(node: Node, ins: tuple[NdSbp, ...], out: NdSbp) -> tuple[int, ...]:
    """The mesh axes on which a split implementation runs: those that split the normalised or indexed dim."""
    if node.op == "aten.log_softmax.int":
        dim = node.args[1] if node.args[1] >= 0 else node.args[1] + len(node.outputs[0].shape)
        return tuple(axis for axis, sbp in enumerate(out) if sbp.is_split and sbp.dim == dim)
    if node.op == "aten.embedding.default":
        return tuple(axis for axis, sbp in enumerate(ins[0]) if sbp.is_split and sbp.dim == 0)
    if node.op == "aten.gather.default":
        dim = node.args[1] if node.args[1] >= 0 else node.args[1] + len(node.outputs[0].shape)
        return tuple(axis for axis, sbp in enumerate(ins[0]) if sbp.is_split and sbp.dim == dim)
    return ()
