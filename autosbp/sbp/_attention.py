"""Sharding rule of scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from autosbp.errors import GraphError
from autosbp.graph.ir import Node, TensorMeta
from autosbp.sbp.factor_notation import FactorTable, Sharding


def attention(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule ``b... q d, b... k d, b... k e, [mask] -> b... q e | whole k d e``; q is whole too when causal.

    In grouped-query attention (fewer heads of keys and values than of queries) an axis splits the heads in whole
    groups. A split implementation handles split keys (output P) and, when causal, split queries; it does not support
    dropout. When causal, the rank with the last queries or the first keys has the most work.
    """
    query, key, value, out = metas[0], metas[1], metas[2], node.outputs[0]
    causal = len(node.args) > 5 and bool(node.args[5])
    random = len(node.args) > 4 and bool(node.args[4])
    lead = len(query.shape) - 2
    table = FactorTable(node, len(metas), 1)
    for dim, size in enumerate(query.sizes[:lead]):
        shared = _batch_extent(node, dim, size, key.sizes[dim], value.sizes[dim], heads=dim == lead - 1)
        table.set(f"b{dim}", shared, 0, dim, output=False)
        table.set(f"b{dim}", shared, 0, dim, output=True)
        for index in (1, 2):
            if metas[index].sizes[dim] != 1 or size == 1:
                table.set(f"b{dim}", shared, index, dim, output=False)
        if len(metas) > 3:
            at = dim - len(query.shape) + len(metas[3].shape)
            if at >= 0 and metas[3].sizes[at] != 1:
                _expect(node, 3, at, metas[3].sizes[at], size)
                table.set(f"b{dim}", shared, 3, at, output=False)
    for index, meta, names in ((0, query, "qd"), (1, key, "kd"), (2, value, "ke")):
        for at, name in enumerate(names):
            table.set(name, meta.sizes[lead + at], index, lead + at, output=False)
    for at, name in enumerate("qe"):
        table.set(name, out.sizes[lead + at], 0, lead + at, output=True)
    if len(metas) > 3:
        for at, name in ((-2, "q"), (-1, "k")):
            if len(metas[3].shape) >= -at and metas[3].sizes[at] != 1:
                table.set(name, metas[3].sizes[at], 3, len(metas[3].shape) + at, output=False)
    flops = 2.0 * prod(out.sizes[:-1]) * key.sizes[-2] * (query.sizes[-1] + value.sizes[-1])
    return Sharding(
        table.factors({"k", "d", "e", *("q" if causal else "")}),
        flops=flops / 2 if causal else flops,
        random=random,
        split_impls=() if random else ("k", "q"),
        skewed=frozenset("qk" if causal else ""),
    )


def _batch_extent(node: Node, dim: int, queries: int, keys: int, values: int, *, heads: bool) -> int:
    """Extent of a leading dim that axes may split; for heads, the number of groups."""
    if keys != values or (queries % keys if heads else keys not in (1, queries)):
        wanted = f"expected {queries} or 1{', or a divisor for grouped heads' if heads else ''}"
        raise GraphError(f"{node.name}.inputs[1].shape[{dim}]", keys, wanted)
    return queries if keys == 1 else keys


def _expect(node: Node, index: int, dim: int, size: int, wanted: int) -> None:
    if size != wanted:
        raise GraphError(f"{node.name}.inputs[{index}].shape[{dim}]", size, f"{node.op} expects {wanted}")
