"""Local FLOPs, bytes and shapes of a program's ops on one rank, under the strategy's layouts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from autosbp.costmodel.efficiency import MatmulShape
from autosbp.costmodel.memory import saved_inputs, saves_output
from autosbp.graph.ir import DTYPE_BYTES, LogicalGraph, Ref
from autosbp.plan.plan import Signature, Strategy
from autosbp.program.chosen_options import checked_choices
from autosbp.program.program import Boxing, Item, Op
from autosbp.sbp.boxing import split_factor
from autosbp.sbp.layout import NdSbp, local_shape
from autosbp.sbp.rules import sharding_of

MASK_SAVING_OPS = frozenset(("aten.dropout.default",))
"""Ops that save nothing but a mask of one byte per element."""
_ONE_OPERAND = ("aten.mul.", "aten.div.")
"""Ops that save nothing if their other operand is a number."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor from outside a group of fused ops.

    Args:
        position: argument at which the group reads it first.
        num_bytes: local bytes.
    """

    position: int
    ref: Ref
    read: object
    num_bytes: float


class LocalOpWork:
    """Work of groups of fused ops (``costmodel.fusion``). ``graph`` is bound at the microbatch size."""

    def __init__(self, graph: LogicalGraph, strategy: Strategy, items: Sequence[Item]) -> None:
        self.graph, self.strategy, self.mesh = graph, strategy, strategy.mesh
        self._readers: dict[object, int] = {}
        for item in items:
            if isinstance(item, Boxing) or item.signature:
                reads: Iterable[object] = [item.ref] if isinstance(item, Boxing) else dict.fromkeys(item.reads)
                for read in reads:
                    self._readers[read] = self._readers.get(read, 0) + 1

    def flops(self, item: Op) -> float:
        """Forward FLOPs of one op."""
        axes = list(
            zip(self.mesh.axes, checked_choices(self.graph, item.node, signature(item), self.mesh.ndim), strict=True)
        )
        work = prod(axis.size for axis, choice in axes if choice.divides)
        skewed = prod(axis.size for axis, choice in axes if choice.skewed)
        return sharding_of(self.graph, item.node).flops / work * (2 - 1 / skewed)

    def operands(self, group: Sequence[Op]) -> list[Operand]:
        """Every outside tensor that a group reads, each once."""
        inside = {item.node.name for item in group}
        found: dict[object, Operand] = {}
        for item in group:
            for at, (ref, read) in enumerate(zip(item.node.refs(), item.reads, strict=True)):
                if not (isinstance(read, Ref) and read.name in inside):
                    size = self.graph.meta(ref).num_bytes / split_factor(signature(item).ins[at], self.mesh)
                    found.setdefault(read, Operand(at, ref, read, size))
        return list(found.values())

    def result_bytes(self, item: Op) -> float:
        """Local bytes of all outputs of one op."""
        layouts = zip(item.node.outputs, signature(item).outs, strict=True)
        return sum(meta.num_bytes / split_factor(layout, self.mesh) for meta, layout in layouts)

    def num_readers(self, item: Op) -> int:
        """Number of ops and boxings that read the op's result."""
        return self._readers.get(Ref(item.node.name), 0)

    def ops_read_outside(self, group: Sequence[Op]) -> list[Op]:
        """Ops of a group whose result is read outside."""
        inner = {read for item in group for read in item.reads if isinstance(read, Ref)}
        return [item for item in group if Ref(item.node.name) not in inner or self.num_readers(item) > 1]

    def mask_bytes(self, group: Sequence[Op]) -> float:
        """Bytes of the masks that forward saves for backward."""
        return sum(
            self.result_bytes(item) / DTYPE_BYTES[item.node.outputs[0].dtype]
            for item in group
            if item.node.op in MASK_SAVING_OPS and item.node.name in self.graph.differentiable
        )

    def saved_bytes(self, group: Sequence[Op]) -> float:
        """Bytes of saved tensors that a group's backward reads, without masks.

        These are outside tensors, and results that leave the group.
        """
        sizes = {operand.read: operand.num_bytes for operand in self.operands(group)}
        escaping = {item.node.name for item in self.ops_read_outside(group)}
        kept: dict[object, float] = {}
        for item in (item for item in group if item.node.op not in MASK_SAVING_OPS):
            if saves_output(self.graph, item.node) and item.node.name in escaping:
                kept[Ref(item.node.name)] = self.result_bytes(item)
            refs = list(item.node.refs())
            alone = len(refs) == 1 and item.node.op.startswith(_ONE_OPERAND)
            for at in () if alone else saved_inputs(self.graph, item.node):
                if at < len(refs) and item.reads[at] in sizes and refs[at].name not in self.graph.parameter_names:
                    kept[item.reads[at]] = sizes[item.reads[at]]
        return sum(kept.values())

    def made(self, group: Sequence[Op]) -> MatmulShape:
        """Result shape of a group of matmuls; packed ones are concatenated along columns."""
        shapes = [self._matrices(item, signature(item).outs[0], item.node.outputs[0].sizes) for item in group]
        return _concatenated(shapes, sum(self.result_bytes(item) for item in group))

    def gradient(self, group: Sequence[Op], position: int, num_bytes: float) -> MatmulShape:
        """Shape of the gradient of a group's operand at ``position``; packed weights are concatenated along columns."""
        shapes = {}
        for item in group:
            ref = list(item.node.refs())[position]
            shapes[ref] = self._matrices(item, signature(item).ins[position], self.graph.meta(ref).sizes)
        return _concatenated(list(shapes.values()), num_bytes)

    def _matrices(self, item: Op, layout: NdSbp, sizes: tuple[int, ...]) -> tuple[int, int, int]:
        """(matrices, rows, columns): leading dims are rows if an operand is a matrix, else batch dims."""
        shape = local_shape(sizes, layout, self.mesh)
        flat = any(len(self.graph.meta(ref).shape) == 2 for ref in item.node.refs())
        if flat or len(shape) < 3:
            return (1, prod(shape[:-1]), shape[-1] if shape else 1)
        return (prod(shape[:-2]), shape[-2], shape[-1])


def _concatenated(shapes: Sequence[tuple[int, int, int]], num_bytes: float) -> MatmulShape:
    return MatmulShape(shapes[0][0], shapes[0][1], sum(columns for _, _, columns in shapes), num_bytes)


def signature(item: Op) -> Signature:
    """The layouts of an op that depends on a parameter; other ops have none and are in no group."""
    assert item.signature is not None  # noqa: S101 - our own invariant
    return item.signature
