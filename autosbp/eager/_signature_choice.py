"""Signature choice for each op of a call: the one of its rule with the cheapest boxing of the operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import inf

from autosbp.costmodel.boxing import BoxingModel
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph, Node, Ref
from autosbp.plan.plan import BoxingKey, Signature, Strategy
from autosbp.program.chosen_options import uneven_choice
from autosbp.sbp.boxing import is_even
from autosbp.sbp.factor_notation import AxisOption
from autosbp.sbp.layout import NdSbp, format_nd_sbp, invariant_as_replicated
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.rules import node_options


def choose_signatures(graph: LogicalGraph, operands: Mapping[str, NdSbp], boxing: BoxingModel) -> Strategy:
    """The strategy of a call, chosen op by op in order.

    The criterion is seconds of boxing, forward plus backward; ties go to the first row of the rule.

    Args:
        graph: of a call (``graph.eager_calls``); its parameters are the ``operands`` in these layouts.
    """
    layouts = {Ref(name): layout for name, layout in operands.items()}
    signatures: dict[str, Signature] = {}
    paths: dict[BoxingKey, tuple[NdSbp, ...]] = {}
    for node in graph.nodes:
        if node.name not in graph.parameter_dependent:
            continue
        reads = [_Read(graph, node, ref, layouts, boxing) for ref in node.refs()]
        signature = signatures[node.name] = _cheapest(graph, node, reads, boxing.mesh)
        for read, wanted in zip(reads, signature.ins, strict=True):
            paths.update(read.path(wanted))
        for index, layout in enumerate(signature.outs):
            layouts[Ref(node.name, index)] = layout
    return Strategy(boxing.mesh, signatures, dict(operands), paths, global_batch=1, micro_batch=1, optimizer="sgd")


class _Read:
    """One tensor that an op reads, and its cost in other layouts."""

    def __init__(
        self, graph: LogicalGraph, node: Node, ref: Ref, layouts: Mapping[Ref, NdSbp], boxing: BoxingModel
    ) -> None:
        self.ref, self.meta, self.boxing = ref, graph.meta(ref), boxing
        self.gradient = graph.has_gradient(ref) and node.name in graph.differentiable
        self.src = layouts[ref] if ref.name in graph.parameter_dependent else None
        if self.src is not None and not self.gradient:
            self.src = invariant_as_replicated(self.src)

    def cost_s(self, wanted: NdSbp) -> float:
        """Seconds of boxing to ``wanted``, infinite if impossible; data is whole, and slicing it is free."""
        if not is_even(self.meta.sizes, wanted, self.boxing.mesh):
            return inf
        if self.src is None or self.src == wanted:
            return 0.0
        table = self.boxing.table(self.meta.sizes, self.meta.num_bytes, self.gradient)
        if self.src not in table.index or wanted not in table.index:
            return inf
        return float(table.cost_s[table.index[self.src], table.index[wanted]])

    def path(self, wanted: NdSbp) -> dict[BoxingKey, tuple[NdSbp, ...]]:
        if self.src is None or self.src == wanted:
            return {}
        steps = self.boxing.plan(self.src, wanted, self.meta.sizes, self.meta.num_bytes, self.gradient)
        key = (self.meta.sizes, self.meta.num_bytes, self.gradient, self.src, wanted)
        return {key: (self.src, *(step.dst for step in steps))}


def _cheapest(graph: LogicalGraph, node: Node, reads: Sequence[_Read], mesh: Mesh) -> Signature:
    options = node_options(graph, node)
    # An axis of one device has nothing to combine: it needs no split implementation, and has no group for one.
    choices = [[option for option in options if axis.size > 1 or not option.needs_split_impl] for axis in mesh.axes]
    best, least = None, inf
    for rows in product(*choices):
        signature = _signature(rows)
        cost = sum(
            read.cost_s(layout) for (read, layout), first in _paying_reads(reads, signature.ins).items() if first
        )
        if cost < least and _fits(node, rows, signature, mesh):
            best, least = signature, cost
    if best is None:
        shown = ", ".join(format_nd_sbp(read.src) for read in reads if read.src is not None)
        raise InputError(node.op, shown, "cannot be converted to any layout of the op; call to_layout first")
    return best


def _paying_reads(reads: Sequence[_Read], layouts: Sequence[NdSbp]) -> dict[tuple[_Read, NdSbp], bool]:
    """Each read with its layout; the value is whether it pays, as only the first read of a tensor in a layout does."""
    seen: set[tuple[Ref, NdSbp]] = set()
    found = {}
    for read, layout in zip(reads, layouts, strict=True):
        found[read, layout] = (read.ref, layout) not in seen
        seen.add((read.ref, layout))
    return found


def _signature(rows: Sequence[AxisOption]) -> Signature:
    return Signature(
        tuple(zip(*(row.ins for row in rows), strict=True)), tuple(zip(*(row.outs for row in rows), strict=True))
    )


def _fits(node: Node, rows: Sequence[AxisOption], signature: Signature, mesh: Mesh) -> bool:
    even = all(is_even(meta.sizes, out, mesh) for meta, out in zip(node.outputs, signature.outs, strict=True))
    return even and uneven_choice(rows, mesh) is None
