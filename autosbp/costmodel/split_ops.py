"""Collectives inside split implementations: ops that run with a reduced or normalised dim split.

Each entry of ``INTERNAL`` gives the communication, in order, of the program that ``executor.split_ops`` runs in place
of the op. Ops over masked ranges (embedding, gather) need none: they produce P.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from autosbp.graph.ir import DTYPE_BYTES, LogicalGraph, Node
from autosbp.program.chosen_options import implemented_axes
from autosbp.sbp.factor_notation import AxisOption
from autosbp.sbp.layout import local_shape
from autosbp.sbp.mesh import Mesh


@dataclass(frozen=True, slots=True)
class InternalCollective:
    """One collective inside an op. ``phase`` is forward or backward; n is ``num_bytes``; ``axes`` form its group."""

    phase: str
    kind: str
    num_bytes: int
    axes: tuple[int, ...]


@dataclass(frozen=True)
class SplitOp:
    """An op that runs a split implementation: its layouts, and the axes that split each factor it handles."""

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

    def has_gradient(self, position: int) -> bool:
        """Whether a gradient flows into a tensor argument."""
        return self.graph.has_gradient(list(self.node.refs())[position])

    def group(self, *factors: str) -> tuple[int, ...]:
        """Axes that split any of these factors (default: any factor that the implementation handles), in mesh order."""
        names = factors or tuple(self.axes)
        return tuple(sorted({axis for name in names for axis in self.axes.get(name, ())}))

    def gathered(self, count: int, axes: tuple[int, ...]) -> InternalCollective:
        """A forward all-gather of ``count`` statistics from each rank of a group."""
        num_bytes = count * self.statistic_bytes * self.mesh.group_size(axes)
        return InternalCollective("forward", "all_gather", num_bytes, axes)

    def reduced(self, phase: str, count: int, axes: tuple[int, ...]) -> InternalCollective:
        """An all-reduce of ``count`` statistics."""
        return InternalCollective(phase, "all_reduce", count * self.statistic_bytes, axes)

    @property
    def statistic_bytes(self) -> int:
        """Bytes of one statistic: means and sums of half-precision tensors are kept in float32."""
        return max(4, DTYPE_BYTES[self.node.outputs[0].dtype])


def _softmax(op: SplitOp) -> list[InternalCollective]:
    """Gather local maxima and sums of exponentials; backward reduces sums of the gradient (OneFlow section 6.3.1)."""
    shape, axes = op.local_output(), op.group()
    rows = prod(shape) // shape[op.node.args[1]]
    calls = [op.gathered(2 * rows, axes)]
    return [*calls, op.reduced("backward", rows, axes)] if op.has_gradient(0) else calls


def _layer_norm(op: SplitOp) -> list[InternalCollective]:
    """Gather mean and variance; backward reduces two sums."""
    rows = prod(op.local_input(0)[: -len(op.node.args[1])])
    return _moments(op, rows, op.group())


def _rms_norm(op: SplitOp) -> list[InternalCollective]:
    """Reduce the mean square; backward reduces one sum."""
    rows, axes = prod(op.local_input(0)[: -len(op.node.args[1])]), op.group()
    calls = [op.reduced("forward", rows, axes)]
    return [*calls, op.reduced("backward", rows, axes)] if op.has_gradient(0) else calls


def _batch_norm(op: SplitOp) -> list[InternalCollective]:
    return _moments(op, op.local_input(0)[1], op.group())


def _group_norm(op: SplitOp) -> list[InternalCollective]:
    """No communication if each rank holds whole groups."""
    axes = tuple(axis for axis in op.group() if axis not in op.group("g"))
    groups = op.node.args[1] // op.mesh.group_size(op.group("g"))
    return _moments(op, op.local_input(0)[0] * groups, axes) if axes else []


def _moments(op: SplitOp, rows: int, axes: tuple[int, ...]) -> list[InternalCollective]:
    calls = [op.gathered(2 * rows, axes)]
    return [*calls, op.reduced("backward", 2 * rows, axes)] if op.has_gradient(0) else calls


def _attention(op: SplitOp) -> list[InternalCollective]:
    """Split keys: gather every rank's log-sum-exp; backward reduces one sum per query. Split queries need nothing."""
    axes, queries = op.group("k"), prod(op.local_output()[:-1])
    if not axes:
        return []
    calls = [op.gathered(queries, axes)]
    scored = [position for position in (0, 1, 3) if position < len(list(op.node.refs()))]
    return [*calls, op.reduced("backward", queries, axes)] if any(map(op.has_gradient, scored)) else calls


def _extremum(op: SplitOp) -> list[InternalCollective]:
    """Gather values and their multiplicities; without a gradient, reduce values."""
    rows, axes = prod(op.local_output()), op.group()
    if op.has_gradient(0):
        return [op.gathered(2 * rows, axes)]
    return [InternalCollective("forward", "all_reduce", rows * DTYPE_BYTES[op.node.outputs[0].dtype], axes)]


def _indexed_extremum(op: SplitOp) -> list[InternalCollective]:
    """Gather values together with their indices."""
    rows, axes = prod(op.local_output()), op.group()
    pair = sum(DTYPE_BYTES[meta.dtype] for meta in op.node.outputs)
    return [InternalCollective("forward", "all_gather", rows * pair * op.mesh.group_size(axes), axes)]


def _logsumexp(op: SplitOp) -> list[InternalCollective]:
    return [op.gathered(prod(op.local_output()), op.group())]


INTERNAL: Mapping[str, Callable[[SplitOp], list[InternalCollective]]] = {
    "aten.amax.default": _extremum,
    "aten.amin.default": _extremum,
    "aten.max.default": _extremum,
    "aten.min.default": _extremum,
    "aten.max.dim": _indexed_extremum,
    "aten.min.dim": _indexed_extremum,
    "aten.logsumexp.default": _logsumexp,
    "aten.scaled_dot_product_attention.default": _attention,
    "aten.layer_norm.default": _layer_norm,
    "aten.rms_norm.default": _rms_norm,
    "aten.group_norm.default": _group_norm,
    "aten.batch_norm.default": _batch_norm,
    "aten.softmax.int": _softmax,
    "aten.log_softmax.int": _softmax,
}


def internal_collectives(
    graph: LogicalGraph, node: Node, choices: Sequence[AxisOption], mesh: Mesh
) -> list[InternalCollective]:
    """Collectives inside ``node``, in order of issue, if each mesh axis takes its option of ``choices``."""
    axes = implemented_axes(choices)
    rule = INTERNAL.get(node.op)
    return rule(SplitOp(graph, node, choices, mesh, axes)) if axes and rule else []
