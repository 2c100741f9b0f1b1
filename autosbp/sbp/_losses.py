"""Sharding rules of element-wise losses with an optional reduction."""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.graph.ir import Node, TensorMeta
from autosbp.sbp._common import broadcast_factors
from autosbp.sbp.factor_notation import FactorTable, Rule, Sharding

NONE, MEAN, SUM = 0, 1, 2


def elementwise_loss(reduction_position: int) -> Rule:
    """Rule of a loss: element-wise without reduction; a sum over split elements is P; a mean needs all elements.

    Import rewrites means as sums divided by counts.
    """

    def rule(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
        reduction = node.args[reduction_position] if len(node.args) > reduction_position else MEAN
        if reduction == NONE:
            return Sharding(broadcast_factors(node, metas).factors(set()))
        if reduction == MEAN:
            return Sharding(())
        ndim = max(len(meta.shape) for meta in metas)
        table = FactorTable(node, len(metas), 1)
        for position, meta in enumerate(metas):
            shift = ndim - len(meta.shape)
            for dim, size in enumerate(meta.sizes):
                if size != 1:
                    table.set(f"d{dim + shift}", size, position, dim, output=False)
        return Sharding(table.factors(set()))

    return rule
