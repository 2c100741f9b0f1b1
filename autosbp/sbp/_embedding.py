"""Sharding rules of ops that index a dim: embedding and gather."""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.graph.ir import Node, TensorMeta
from autosbp.sbp._common import LINEAR_IN_FIRST, dim_argument
from autosbp.sbp.factor_notation import FactorTable, Sharding, notation


def embedding(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule ``v d, b... -> b... d``; a split implementation splits the table's rows (masked ranges, output P).

    With ``scale_grad_by_freq`` the gradient needs all ids and all rows on every rank, so v and b stay whole.
    """
    counted = len(node.args) > 3 and bool(node.args[3])
    whole, split_impls = ("v b", ()) if counted else ("v", ("v",))
    return notation("v d, b... -> b... d", whole=whole, linear="0", split_impls=split_impls)(node, metas)


def gather(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of ``gather(x, dim, index)``.

    x and index split together along other dims of equal size; along ``dim`` the index splits alone, and a split
    implementation splits x (masked ranges, output P).
    """
    source, index, out = metas[0], metas[1], node.outputs[0]
    dim = dim_argument(node, 1, len(source.shape))
    table = FactorTable(node, 2, 1)
    for at in range(len(source.shape)):
        if at == dim:
            table.set("g", source.sizes[at], 0, at, output=False)
            table.set("i", index.sizes[at], 1, at, output=False)
            table.set("i", out.sizes[at], 0, at, output=True)
        elif source.sizes[at] == out.sizes[at]:
            table.set(f"d{at}", source.sizes[at], 0, at, output=False)
            table.set(f"d{at}", index.sizes[at], 1, at, output=False)
            table.set(f"d{at}", out.sizes[at], 0, at, output=True)
    return Sharding(table.factors({"g"}), linear=LINEAR_IN_FIRST, split_impls=("g",))
