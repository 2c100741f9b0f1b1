"""Sharding rules of ops that read or write elements by index tensors, and of ops that sort or scan a dim."""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.graph.ir import Node, Ref, TensorMeta
from autosbp.sbp._common import LINEAR_IN_FIRST, dim_argument
from autosbp.sbp.factor_notation import FactorTable, Rule, Sharding


def index(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of ``x[i, :, j]``: dims without an index may be split, as may the broadcast dims of the indices."""
    source, out = metas[0], node.outputs[0]
    table = FactorTable(node, len(metas), 1)
    kept, places, first = _dims_without_index(node, source)
    lead = max(len(meta.shape) for meta in metas[1:])
    for dim, at in zip(kept, places, strict=True):
        table.set(f"d{dim}", source.sizes[dim], 0, dim, output=False)
        table.set(
            f"d{dim}", out.sizes[at + (lead if at >= first else 0)], 0, at + (lead if at >= first else 0), output=True
        )
    for position, meta in enumerate(metas[1:], start=1):
        for dim, size in enumerate(meta.sizes):
            at = lead - len(meta.shape) + dim
            if size != 1 or out.sizes[first + at] == 1:
                table.set(f"i{at}", size, position, dim, output=False)
                table.set(f"i{at}", out.sizes[first + at], 0, first + at, output=True)
    return Sharding(table.factors(set()), linear=LINEAR_IN_FIRST)


def _dims_without_index(node: Node, source: TensorMeta) -> tuple[list[int], list[int], int]:
    """Dims without an index, their order among themselves, and how many of them precede the indices' dims."""
    given = node.args[1]
    taken = [dim for dim, entry in enumerate(given) if isinstance(entry, Ref)]
    kept = [dim for dim in range(len(source.shape)) if dim not in taken]
    adjacent = taken == list(range(taken[0], taken[-1] + 1))
    first = sum(1 for dim in kept if dim < taken[0]) if adjacent else 0
    return kept, list(range(len(kept))), first


def index_put(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of ``x[i] = values``: dims without an index may be split where ``values`` has them."""
    source, values = metas[0], metas[-1]
    table = FactorTable(node, len(metas), 1)
    kept, places, first = _dims_without_index(node, source)
    lead = max(len(meta.shape) for meta in metas[1:-1])
    whole = len(values.shape) == lead + len(kept)
    for dim, at in zip(kept, places, strict=True):
        table.set(f"d{dim}", source.sizes[dim], 0, dim, output=False)
        table.set(f"d{dim}", node.outputs[0].sizes[dim], 0, dim, output=True)
        place = at + (lead if at >= first else 0)
        if whole and values.sizes[place] == source.sizes[dim]:
            table.set(f"d{dim}", values.sizes[place], len(metas) - 1, place, output=False)
        elif len(values.shape) and not (whole and values.sizes[place] == 1):
            return Sharding(())
    return Sharding(table.factors(set()), linear=(frozenset((0, len(metas) - 1)),))


def index_select(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of ``index_select(x, dim, i)``: other dims may be split; the index's dim replaces ``dim``."""
    source, chosen, out = metas[0], metas[1], node.outputs[0]
    dim = dim_argument(node, 1, len(source.shape))
    table = FactorTable(node, 2, 1)
    for at, size in enumerate(source.sizes):
        if at == dim:
            table.set("i", chosen.sizes[0], 1, 0, output=False)
            table.set("i", out.sizes[at], 0, at, output=True)
        else:
            table.set(f"d{at}", size, 0, at, output=False)
            table.set(f"d{at}", out.sizes[at], 0, at, output=True)
    return Sharding(table.factors(set()), linear=LINEAR_IN_FIRST)


def index_add(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of ``index_add(x, dim, i, source)``: other dims split together; a split index gives P (x on one rank)."""
    target, chosen, source = metas
    dim = dim_argument(node, 1, len(target.shape))
    table = FactorTable(node, 3, 1)
    for at, size in enumerate(target.sizes):
        if at != dim:
            table.set(f"d{at}", size, 0, at, output=False)
            table.set(f"d{at}", source.sizes[at], 2, at, output=False)
            table.set(f"d{at}", size, 0, at, output=True)
    table.set("i", chosen.sizes[0] if chosen.shape else 1, 1, 0, output=False)
    table.set("i", source.sizes[dim], 2, dim, output=False)
    return Sharding(table.factors(set()), additive=frozenset((0,)), linear=(frozenset((0, 2)),))


def scatter(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of ``scatter(x, dim, i, source or value)``; linear in x and source.

    Dims other than ``dim`` split together if all tensors have the same size there. If the op adds (``scatter_add``), a
    split index gives P, and a split implementation lets each rank hold a range of x along ``dim``.
    """
    target = metas[0]
    dim = dim_argument(node, 1, len(target.shape))
    table = FactorTable(node, len(metas), 1)
    adds = "scatter_add" in node.op
    for at, size in enumerate(target.sizes):
        if at != dim and all(meta.sizes[at] == size for meta in metas):
            for position in range(len(metas)):
                table.set(f"d{at}", size, position, at, output=False)
            table.set(f"d{at}", size, 0, at, output=True)
    if adds and metas[1].sizes[dim] == metas[2].sizes[dim]:
        for position in (1, 2):
            table.set("i", metas[position].sizes[dim], position, dim, output=False)
    if adds:
        table.set("g", target.sizes[dim], 0, dim, output=False)
        table.set("g", target.sizes[dim], 0, dim, output=True)
    tensors = frozenset((0, 2)) if len(metas) == 3 else frozenset((0,))
    by_value = len(metas) == 2 and node.args[3] != 0
    linear = () if by_value or "reduce" in node.op else (tensors,)
    additive, split_impls = (frozenset((0,)), ("g",)) if adds else (frozenset(), ())
    return Sharding(table.factors({"g"}), additive=additive, linear=linear, split_impls=split_impls)


def whole_dim_rule(position: int, *, linear: bool = False, default: int = -1) -> Rule:
    """Rule of ops that need one dim whole (argument ``position``): sort, top-k, cumulative sums.

    All outputs have the other dims' sizes.
    """

    def rule(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
        ndim = len(metas[0].shape)
        given = node.args[position] if len(node.args) > position else default
        dim = given % ndim if ndim else 0
        table = FactorTable(node, len(metas), len(node.outputs))
        for at, size in enumerate(metas[0].sizes):
            if at != dim:
                table.set(f"d{at}", size, 0, at, output=False)
                for output, meta in enumerate(node.outputs):
                    table.set(f"d{at}", meta.sizes[at], output, at, output=True)
        return Sharding(table.factors(set()), linear=LINEAR_IN_FIRST if linear else ())

    return rule


def one_hot(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of ``one_hot``: the new last dim (classes) is whole, all others may be split."""
    table = FactorTable(node, 1, 1)
    for at, size in enumerate(metas[0].sizes):
        table.set(f"d{at}", size, 0, at, output=False)
        table.set(f"d{at}", node.outputs[0].sizes[at], 0, at, output=True)
    return Sharding(table.factors(set()))


def histogram(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of ``histc(x, bins, min, max)``; if min and max are given, histograms of parts of x add up (P)."""
    low, high = (float(node.args[at]) if len(node.args) > at else 0.0 for at in (2, 3))
    if low == high:  # min and max come from the data
        return Sharding(())
    table = FactorTable(node, 1, 1)
    for at, size in enumerate(metas[0].sizes):
        table.set(f"d{at}", size, 0, at, output=False)
    return Sharding(table.factors(set()))
