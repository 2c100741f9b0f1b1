"""Sharding rules of sums."""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.graph.ir import Node, TensorMeta
from autosbp.sbp._common import LINEAR_IN_FIRST
from autosbp.sbp.factor_notation import FactorTable, Sharding


def sum_dims(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of ``sum(x, dims, keepdim)``: a split of a reduced dim leaves a partial sum."""
    ndim = len(metas[0].shape)
    dims = node.args[1] if len(node.args) > 1 and node.args[1] else tuple(range(ndim))
    reduced = {dim % ndim for dim in dims}
    keep = len(node.args) > 2 and bool(node.args[2])
    table = FactorTable(node, 1, 1)
    at = 0
    for dim, size in enumerate(metas[0].sizes):
        table.set(f"d{dim}", size, 0, dim, output=False)
        if dim not in reduced:
            table.set(f"d{dim}", node.outputs[0].sizes[at], 0, at, output=True)
        at += dim not in reduced or keep
    return Sharding(table.factors(set()), linear=LINEAR_IN_FIRST)
