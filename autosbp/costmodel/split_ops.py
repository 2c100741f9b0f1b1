"""Split implementations: the collectives that happen inside an op whose whole dim is split (DESIGN section 5).

Each entry of ``INTERNAL`` tells what the program that ``executor.split_ops`` runs in the op's place communicates, in
order. Ops over masked ranges (embedding, gather) need nothing: they give P.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from autosbp.graph.ir import DTYPE_BYTES, LogicalGraph, Node, Ref
from autosbp.sbp.choices import implemented_axes
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.placement import local_shape
from autosbp.sbp.sharding import AxisOption


@dataclass(frozen=True, slots=True)
class InternalCollective:
    """One collective inside an op. ``phase`` is forward or backward; n is ``num_bytes``; ``axes`` make its group."""

    phase: str
    kind: str
    num_bytes: int
    axes: tuple[int, ...]


@dataclass(frozen=True)
class SplitOp:
    """An op whose split implementation runs: its layouts, and the axes that split each factor it serves."""

    graph: LogicalGraph
    node: Node
    choices: Sequence[AxisOption]
    mesh: Mesh
    axes: Mapping[str, tuple[int, ...]]

    def local_input(self, position: int) -> tuple[int, ...]:
        """Local shape of a tensor argument."""
        ref = list(self.node.refs())[position]
        layout = tuple(choice.ins[position] for choice in self.choices)
        return local_shape(self.graph.meta(ref).sizes, layout, self.mesh)

    def local_output(self, index: int = 0) -> tuple[int, ...]:
        """Local shape of an output."""
        layout = tuple(choice.outs[index] for choice in self.choices)
        return local_shape(self.node.outputs[index].sizes, layout, self.mesh)

    @property
    def has_gradient(self) -> bool:
        return self.graph.has_gradient(Ref(self.node.name))

    def one_group(self) -> tuple[int, ...]:
        """The axes of a program that serves one factor."""
        (axes,) = self.axes.values()
        return axes


def _log_softmax(op: SplitOp) -> list[InternalCollective]:
    """Local maxima, then local sums of exponentials; backward, local sums of the gradient (OneFlow section 6.3.1)."""
    shape, dim = op.local_output(), op.node.args[1]
    num_bytes = prod(shape) // shape[dim] * DTYPE_BYTES[op.node.outputs[0].dtype]
    phases = ("forward", "forward", *(("backward",) if op.has_gradient else ()))
    return [InternalCollective(phase, "all_reduce", num_bytes, op.one_group()) for phase in phases]


INTERNAL: Mapping[str, Callable[[SplitOp], list[InternalCollective]]] = {
    "aten.log_softmax.int": _log_softmax,
}


def internal_collectives(
    graph: LogicalGraph, node: Node, choices: Sequence[AxisOption], mesh: Mesh
) -> list[InternalCollective]:
    """The collectives inside ``node`` when each mesh axis takes its option of ``choices``, in the order of issue."""
    axes = implemented_axes(choices)
    rule = INTERNAL.get(node.op)
    return rule(SplitOp(graph, node, choices, mesh, axes)) if axes and rule else []
