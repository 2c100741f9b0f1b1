"""Sharding rules of max, min and log-sum-exp over dims.

Without a gradient, a maximum over a split dim is a partial value (Pmax). With a gradient, or if the result must be
complete, a split implementation combines the ranks' results: every rank then holds the whole result and its whole
gradient (I).
"""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.graph.ir import Node, TensorMeta
from autosbp.sbp._common import dim_argument
from autosbp.sbp.factor_notation import AxisOption, FactorTable, Rule, Sharding
from autosbp.sbp.layout import I, S


def extremum(reduction: str) -> Rule:
    """Rule of ``amax(x, dims, keepdim)``, ``max(x)`` and the corresponding minima."""

    def rule(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
        table, joined = _reduction_factors(node, metas[0], _dims(node, metas[0]))
        return Sharding(table.factors(set()), extra=joined, reduction=reduction)

    return rule


def extremum_with_index(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of ``max(x, dim, keepdim)``, which also returns indices; a partial value cannot represent these."""
    dim = dim_argument(node, 1, len(metas[0].shape))
    table, joined = _reduction_factors(node, metas[0], {dim})
    return Sharding(table.factors({f"d{dim}"}), extra=joined)


def logsumexp(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of ``logsumexp(x, dims, keepdim)``."""
    dims = _dims(node, metas[0])
    table, joined = _reduction_factors(node, metas[0], dims)
    return Sharding(table.factors({f"d{dim}" for dim in dims}), extra=joined)


def _dims(node: Node, meta: TensorMeta) -> set[int]:
    ndim = len(meta.shape)
    given = node.args[1] if len(node.args) > 1 else ()
    return {dim % ndim for dim in given or range(ndim)}


def _reduction_factors(node: Node, meta: TensorMeta, reduced: set[int]) -> tuple[FactorTable, tuple[AxisOption, ...]]:
    """Factors of a reduction with any number of outputs, and the options whose implementation splits reduced dims."""
    keep = len(node.args) > 2 and bool(node.args[2])
    table = FactorTable(node, 1, len(node.outputs))
    at = 0
    for dim, size in enumerate(meta.sizes):
        table.set(f"d{dim}", size, 0, dim, output=False)
        if dim not in reduced:
            for index, out in enumerate(node.outputs):
                table.set(f"d{dim}", out.sizes[at], index, at, output=True)
        at += dim not in reduced or keep
    outs = (I,) * len(node.outputs)
    joined = (AxisOption(f"d{dim}", (S(dim),), outs, True, meta.sizes[dim], True) for dim in sorted(reduced))
    return table, tuple(option for option in joined if option.size > 1)
