"""Which signature each op of a call takes: of its rule's, the one that needs the cheapest boxing of its operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import inf

from autosbp.costmodel.boxing import BoxingModel
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph, Node, Ref
from autosbp.plan import BoxingKey, Signature, Strategy
from autosbp.sbp.boxing import is_even
from autosbp.sbp.choices import uneven_choice
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.placement import NdSbp, format_nd_sbp, without_invariants
from autosbp.sbp.rules import node_options
from autosbp.sbp.sharding import AxisOption


def choose(graph: LogicalGraph, operands: Mapping[str, NdSbp], boxing: BoxingModel) -> Strategy:
    """The strategy of a call, op by op in order: forward plus backward seconds of boxing decide, and of equals the row
    that comes first in the rule.

    Args:
        graph: a call's (``graph.calls``), whose parameters are the ``operands`` in these layouts.
    """
    layouts = {Ref(name): layout for name, layout in operands.items()}
    signatures: dict[str, Signature] = {}
    paths: dict[BoxingKey, tuple[NdSbp, ...]] = {}
    for node in graph.nodes:
        if node.name not in graph.computed:
            continue
        reads = [_Read(graph, node, ref, layouts, boxing) for ref in node.refs()]
        signature = signatures[node.name] = _cheapest(graph, node, reads, boxing.mesh)
        for read, wanted in zip(reads, signature.ins, strict=True):
            paths.update(read.path(wanted))
        for index, layout in enumerate(signature.outs):
            layouts[Ref(node.name, index)] = layout
    return Strategy(boxing.mesh, signatures, dict(operands), paths, global_batch=1, micro_batch=1, optimizer="sgd")


class _Read:
    """One tensor that an op reads, and what it costs in another layout."""

    def __init__(
        self, graph: LogicalGraph, node: Node, ref: Ref, layouts: Mapping[Ref, NdSbp], boxing: BoxingModel
    ) -> None:
        self.ref, self.meta, self.boxing = ref, graph.meta(ref), boxing
        self.gradient = graph.has_gradient(ref) and node.name in graph.differentiable
        self.src = layouts[ref] if ref.name in graph.computed else None
        if self.src is not None and not self.gradient:
            self.src = without_invariants(self.src)

    def cost_s(self, wanted: NdSbp) -> float:
        """Infinite where there is no way; whole data is cut for nothing."""
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
    # On an axis of one device there is nothing to join: no split implementation, and no group for it.
    choices = [[option for option in options if axis.size > 1 or not option.implemented] for axis in mesh.axes]
    best, least = None, inf
    for rows in product(*choices):
        signature = _signature(rows)
        cost = sum(read.cost_s(layout) for (read, layout), first in _shared(reads, signature.ins).items() if first)
        if cost < least and _fits(node, rows, signature, mesh):
            best, least = signature, cost
    if best is None:
        shown = ", ".join(format_nd_sbp(read.src) for read in reads if read.src is not None)
        raise InputError(node.op, shown, "layouts that can be boxed to one of the op's are expected; call to_layout")
    return best


def _shared(reads: Sequence[_Read], layouts: Sequence[NdSbp]) -> dict[tuple[_Read, NdSbp], bool]:
    """Each read with its layout; of several of one tensor in one layout the first pays."""
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
