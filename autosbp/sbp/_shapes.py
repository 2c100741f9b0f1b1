"""Sharding rules of ops that change shapes but compute no values."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from autosbp.errors import GraphError
from autosbp.graph.ir import Node, TensorMeta
from autosbp.sbp._common import LINEAR_IN_FIRST, broadcast_factors, dim_argument, unchanged_dim_factors
from autosbp.sbp.factor_notation import Factor, FactorTable, Sharding


def reshape(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of a reshape: the leading dim of each group of dims may be split, as in ``b s (h d) -> b s h d``.

    A group is a smallest run of input dims and one of output dims with the same number of elements.
    """
    source, target = metas[0].sizes, node.outputs[0].sizes
    if prod(source) != prod(target):
        raise GraphError(f"{node.name}.outputs[0].shape", list(target), f"expected {prod(source)} elements")
    factors = []
    for ins, outs in _groups(source, target):
        lead_in = next((dim for dim in ins if source[dim] > 1), None)
        lead_out = next((dim for dim in outs if target[dim] > 1), None)
        if lead_in is None or lead_out is None:
            continue
        size = gcd(source[lead_in], target[lead_out])
        if size > 1:
            factors.append(Factor(f"d{lead_out}", size, (lead_in,), (lead_out,)))
    return Sharding(tuple(factors), linear=LINEAR_IN_FIRST, free=True)


def _groups(source: tuple[int, ...], target: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Smallest runs of dims with equal products on both sides."""
    groups = []
    left = right = 0
    while left < len(source) or right < len(target):
        ins, outs = [], []
        size_in = size_out = 1
        while True:
            if size_in <= size_out and left < len(source):
                size_in *= source[left]
                ins.append(left)
                left += 1
            elif right < len(target):
                size_out *= target[right]
                outs.append(right)
                right += 1
            else:
                break
            if size_in == size_out and ins and outs:
                break
        groups.append((ins, outs))
    return groups


def permute(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of ``permute(x, order)``: dim ``order[i]`` of the input is dim i of the output."""
    order = node.args[1]
    ndim = len(metas[0].shape)
    if not isinstance(order, tuple) or sorted(dim % ndim for dim in order) != list(range(ndim)):
        raise GraphError(f"{node.name}.args[1]", order, f"expected a permutation of 0 to {ndim - 1}")
    table = FactorTable(node, 1, 1)
    for at, dim in enumerate(order):
        table.set(f"d{at}", metas[0].sizes[dim % ndim], 0, dim % ndim, output=False)
        table.set(f"d{at}", node.outputs[0].sizes[at], 0, at, output=True)
    return Sharding(table.factors(set()), linear=LINEAR_IN_FIRST, free=True)


def expand(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of ``expand``: new dims and dims of size 1 are broadcast, so only the others may be split."""
    return Sharding(broadcast_factors(node, metas).factors(set()), linear=LINEAR_IN_FIRST, free=True)


def slice_tensor(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of a slice: the sliced dim is whole, unless the slice takes one of every ``step`` elements of it all."""
    dim = dim_argument(node, 1, len(metas[0].shape))
    before, after = metas[0].sizes[dim], node.outputs[0].sizes[dim]
    start, step = (node.args[at] if len(node.args) > at else default for at, default in ((2, 0), (4, 1)))
    factors = unchanged_dim_factors(node, metas, {dim})
    if step > 1 and 0 <= (start or 0) < step and before == step * after and after > 1:
        factors = (*factors, Factor(f"d{dim}", after, (dim,), (dim,)))
    return Sharding(factors, linear=LINEAR_IN_FIRST, free=True)


def cat(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of ``cat``: the concatenated dim is whole; the output is P if all inputs are."""
    factors = unchanged_dim_factors(
        node, metas, {dim_argument(node, 1, len(node.outputs[0].shape)) if len(node.args) > 1 else 0}
    )
    return Sharding(factors, linear=(frozenset(range(len(metas))),))


def pad(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of a constant pad: padded dims are whole."""
    widths = node.args[1]
    ndim = len(metas[0].shape)
    changed = {ndim - 1 - at // 2 for at, width in enumerate(widths) if width}
    value = node.args[2] if len(node.args) > 2 else 0
    return Sharding(unchanged_dim_factors(node, metas, changed), linear=LINEAR_IN_FIRST if value == 0 else ())
