"""Rules of ops that change shapes and move no values between elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from autosbp.errors import GraphError
from autosbp.graph.ir import Node, TensorMeta
from autosbp.sbp._common import FIRST, aligned, dim_argument, unchanged
from autosbp.sbp.sharding import Factor, FactorTable, Sharding


def reshape(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Dims are matched in groups of equal size, as in ``b s (h d) -> b s h d``; a group's leading dim may be split."""
    source, target = metas[0].sizes, node.outputs[0].sizes
    if prod(source) != prod(target):
        raise GraphError(f"{node.name}.outputs[0].shape", list(target), f"{prod(source)} elements are expected")
    factors = []
    for ins, outs in _groups(source, target):
        lead_in = next((dim for dim in ins if source[dim] > 1), None)
        lead_out = next((dim for dim in outs if target[dim] > 1), None)
        if lead_in is None or lead_out is None:
            continue
        size = gcd(source[lead_in], target[lead_out])
        if size > 1:
            factors.append(Factor(f"d{lead_out}", size, (lead_in,), (lead_out,)))
    return Sharding(tuple(factors), linear=FIRST, free=True)


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
    """Dim ``order[i]`` of the input is dim i of the output."""
    order = node.args[1]
    ndim = len(metas[0].shape)
    if not isinstance(order, tuple) or sorted(dim % ndim for dim in order) != list(range(ndim)):
        raise GraphError(f"{node.name}.args[1]", order, f"a permutation of 0 to {ndim - 1} is expected")
    table = FactorTable(node, 1, 1)
    for at, dim in enumerate(order):
        table.set(f"d{at}", metas[0].sizes[dim % ndim], 0, dim % ndim, output=False)
        table.set(f"d{at}", node.outputs[0].sizes[at], 0, at, output=True)
    return Sharding(table.factors(set()), linear=FIRST, free=True)


def expand(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """New and size-1 dims are broadcast."""
    return Sharding(aligned(node, metas).factors(set()), linear=FIRST, free=True)


def slice_tensor(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """The sliced dim stays whole, unless a step takes one element of each so many."""
    dim = dim_argument(node, 1, len(metas[0].shape))
    before, after = metas[0].sizes[dim], node.outputs[0].sizes[dim]
    start, step = (node.args[at] if len(node.args) > at else default for at, default in ((2, 0), (4, 1)))
    factors = unchanged(node, metas, {dim})
    if step > 1 and 0 <= (start or 0) < step and before == step * after and after > 1:
        factors = (*factors, Factor(f"d{dim}", after, (dim,), (dim,)))
    return Sharding(factors, linear=FIRST, free=True)


def cat(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """The concatenated dim stays whole; P when all are P."""
    factors = unchanged(node, metas, {dim_argument(node, 1, len(node.outputs[0].shape)) if len(node.args) > 1 else 0})
    return Sharding(factors, linear=(frozenset(range(len(metas))),))


def pad(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Padded dims stay whole."""
    widths = node.args[1]
    ndim = len(metas[0].shape)
    changed = {ndim - 1 - at // 2 for at, width in enumerate(widths) if width}
    value = node.args[2] if len(node.args) > 2 else 0
    return Sharding(unchanged(node, metas, changed), linear=FIRST if value == 0 else ())
