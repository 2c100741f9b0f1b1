"""Rules of matrix products that broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from autosbp.errors import GraphError
from autosbp.graph.ir import Node, TensorMeta
from autosbp.sbp.sharding import FactorTable, Sharding


def matmul(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """``[b...] m k, [b...] k n -> [b...] m n`` with broadcast batch dims; both operands have at least 2 dims."""
    left, right, out = metas[0], metas[1], node.outputs[0]
    if len(left.shape) < 2 or len(right.shape) < 2:
        raise GraphError(f"{node.name}.shape", list(left.shape), "matmul operands of at least 2 dims are expected")
    table = FactorTable(node, 2, 1)
    lead = len(out.shape) - 2
    for dim in range(lead):
        table.set(f"b{dim}", out.sizes[dim], 0, dim, output=True)
    for index, meta in enumerate((left, right)):
        shift = lead - (len(meta.shape) - 2)
        for dim in range(len(meta.shape) - 2):
            if meta.sizes[dim] != 1 or out.sizes[dim + shift] == 1:
                table.set(f"b{dim + shift}", meta.sizes[dim], index, dim, output=False)
    for name, index, dim in (("m", 0, -2), ("k", 0, -1), ("k", 1, -2), ("n", 1, -1)):
        meta = (left, right)[index]
        table.set(name, meta.sizes[dim], index, len(meta.shape) + dim, output=False)
    table.set("m", out.sizes[-2], 0, lead, output=True)
    table.set("n", out.sizes[-1], 0, lead + 1, output=True)
    factors = table.factors(set())
    flops = 2.0 * prod(out.sizes) * left.sizes[-1]
    return Sharding(factors, linear=(frozenset((0,)), frozenset((1,))), flops=flops)
