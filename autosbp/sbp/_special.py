"""Rules that notation alone cannot say, because they depend on attributes or on how many dims there are."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from autosbp.errors import GraphError
from autosbp.graph.ir import Node, Ref, TensorMeta
from autosbp.sbp.sharding import Factor, FactorTable, Rule, Sharding, notation

_FIRST = (frozenset((0,)),)


def pointwise(linear: str) -> Rule:
    """An element-wise op with broadcasting; ``linear`` names sets of argument positions, as in ``notation``."""
    sets = tuple(frozenset(int(position) for position in part.split()) for part in linear.split(";") if part.strip())

    def rule(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
        table = _aligned(node, metas)
        tensors = [position for position, arg in enumerate(node.args) if isinstance(arg, Ref)]
        # All operands of a set must be tensors: adding a number is not linear, nor is a number over a tensor.
        usable = (inputs for inputs in sets if inputs <= set(tensors))
        return Sharding(
            table.factors(set()),
            linear=tuple(frozenset(tensors.index(position) for position in inputs) for inputs in usable),
        )

    return rule


def _aligned(node: Node, metas: Sequence[TensorMeta]) -> FactorTable:
    """Factors of a broadcast: dims aligned at the right, size-1 dims free."""
    out = node.outputs[0]
    table = FactorTable(node, len(metas), len(node.outputs))
    names = [f"d{dim}" for dim in range(len(out.shape))]
    table.hold(0, names, out, output=True)
    for index, meta in enumerate(metas):
        shift = len(out.shape) - len(meta.shape)
        if shift < 0:
            raise GraphError(f"{node.name}.inputs[{index}].shape", list(meta.shape), f"at most {len(out.shape)} dims")
        for dim, size in enumerate(meta.sizes):
            if size != 1 or out.sizes[dim + shift] == 1:
                table.set(names[dim + shift], size, index, dim, output=False)
    return table


def masked_fill(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """``masked_fill(x, mask, value)``; linear in x when the value is 0."""
    value = node.args[2]
    return Sharding(_aligned(node, metas).factors(set()), linear=_FIRST if value == 0 else ())


def to_dtype(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """A cast; partial sums survive casts between float types only."""
    linear = _FIRST if metas[0].is_float and node.outputs[0].is_float else ()
    return Sharding(_aligned(node, metas).factors(set()), linear=linear)


def dropout(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Random: each shard draws its own mask, replicas the same one; not linear across ranks."""
    return Sharding(_aligned(node, metas).factors(set()), random=True)


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


def conv2d(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """``n ci h w, co ci kh kw, +[co] -> n co h' w'``; batch, filters and (ungrouped) channels may be split."""
    x, weight, out = metas[0], metas[1], node.outputs[0]
    if any(len(meta.shape) != 4 for meta in (x, weight, out)):
        raise GraphError(f"{node.name}.shape", list(x.shape), "conv2d on 4-dim tensors is expected")
    groups = node.args[6] if len(node.args) > 6 else 1
    table = FactorTable(node, len(metas), 1)
    table.set("n", x.sizes[0], 0, 0, output=False)
    table.set("n", out.sizes[0], 0, 0, output=True)
    table.set("co", weight.sizes[0], 1, 0, output=False)
    table.set("co", out.sizes[1], 0, 1, output=True)
    if len(metas) > 2:
        table.set("co", metas[2].sizes[0], 2, 0, output=False)
    if groups == 1:
        table.set("ci", x.sizes[1], 0, 1, output=False)
        table.set("ci", weight.sizes[1], 1, 1, output=False)
    flops = 2.0 * prod(out.sizes) * prod(weight.sizes[1:])
    linear = (frozenset((0,)), frozenset((1,)))
    whole = set() if groups == 1 else {"co"}
    return Sharding(table.factors(whole), frozenset((2,)) if len(metas) > 2 else frozenset(), linear, flops)


def pooling(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """``n c h w -> n c h' w'``, space whole."""
    table = FactorTable(node, 1, 1)
    for dim in range(len(metas[0].shape) - 2):
        table.set(f"b{dim}", metas[0].sizes[dim], 0, dim, output=False)
        table.set(f"b{dim}", node.outputs[0].sizes[dim], 0, dim, output=True)
    return Sharding(table.factors(set()), linear=() if "max" in node.op else _FIRST)


def attention(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """``b... q d, b... k d, b... k e, [mask] -> b... q e | whole k d e`` (and q when causal)."""
    query, key, value, out = metas[0], metas[1], metas[2], node.outputs[0]
    lead = len(query.shape) - 2
    names = [f"b{dim}" for dim in range(lead)]
    table = FactorTable(node, len(metas), 1)
    table.hold(0, [*names, "q", "d"], query, output=False)
    table.hold(1, [*names, "k", "d"], key, output=False)
    table.hold(2, [*names, "k", "e"], value, output=False)
    table.hold(0, [*names, "q", "e"], out, output=True)
    if len(metas) > 3:
        mask = metas[3]
        full = [*names, "q", "k"][lead + 2 - len(mask.shape) :]
        for dim, (name, size) in enumerate(zip(full, mask.sizes, strict=True)):
            if size != 1:
                table.set(name, size, 3, dim, output=False)
    causal = len(node.args) > 5 and bool(node.args[5])
    random = len(node.args) > 4 and bool(node.args[4])
    whole = {"k", "d", "e"} | ({"q"} if causal else set())
    flops = 2.0 * prod(out.sizes[:-1]) * key.sizes[-2] * (query.sizes[-1] + value.sizes[-1])
    return Sharding(table.factors(whole), flops=flops / 2 if causal else flops, random=random)


def layer_norm(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """``b... d..., [d...], [d...] -> b... d... | whole d``."""
    normalized = node.args[1]
    lead = len(metas[0].shape) - len(normalized)
    names = [f"b{dim}" for dim in range(lead)] + [f"d{dim}" for dim in range(len(normalized))]
    table = FactorTable(node, len(metas), 1)
    table.hold(0, names, metas[0], output=False)
    table.hold(0, names, node.outputs[0], output=True)
    for index in range(1, len(metas)):
        table.hold(index, names[lead:], metas[index], output=False)
    return Sharding(table.factors({"d"}))


def _dim(node: Node, position: int, ndim: int) -> int:
    dim = node.args[position] if len(node.args) > position else -1
    if not isinstance(dim, int) or not -ndim <= dim < ndim:
        raise GraphError(f"{node.name}.args[{position}]", dim, f"a dim in [{-ndim}, {ndim - 1}] is expected")
    return dim % ndim


def _same_shape(
    node: Node, metas: Sequence[TensorMeta], whole: set[int], *, split_impls: tuple[str, ...] = ()
) -> Sharding:
    table = _aligned(node, metas[:1])
    return Sharding(table.factors({f"d{dim}" for dim in whole}), split_impls=split_impls)


def softmax(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Every dim but the normalised one."""
    return _same_shape(node, metas, {_dim(node, 1, len(metas[0].shape))})


def log_softmax(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """As softmax; a program with two reductions (``executor.ops``), which does not cast, splits the normalised dim."""
    dim = _dim(node, 1, len(metas[0].shape))
    casts = metas[0].dtype != node.outputs[0].dtype
    return _same_shape(node, metas, {dim}, split_impls=() if casts else (f"d{dim}",))


def embedding(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """``v d, b... -> b... d``; the table's rows are split by masked ranges, output P.

    Not so with a padding row, which has no gradient: a range does not know it. Gradients that are scaled by how often
    an id occurs need all ids on every rank.
    """
    padding = node.args[2] if len(node.args) > 2 else -1
    counted = len(node.args) > 3 and bool(node.args[3])
    plain = padding == -1 and not counted
    whole = "v b" if counted else "v"
    return notation("v d, b... -> b... d", whole=whole, linear="0", split_impls=("v",) if plain else ())(node, metas)


def gather(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """``gather(x, dim, index)``: other dims together; the gathered dim by masked ranges, output P."""
    source, index, out = metas[0], metas[1], node.outputs[0]
    dim = _dim(node, 1, len(source.shape))
    table = FactorTable(node, 2, 1)
    for at in range(len(source.shape)):
        if at == dim:
            table.set("g", source.sizes[at], 0, at, output=False)
        elif source.sizes[at] == out.sizes[at]:
            table.set(f"d{at}", source.sizes[at], 0, at, output=False)
            table.set(f"d{at}", index.sizes[at], 1, at, output=False)
            table.set(f"d{at}", out.sizes[at], 0, at, output=True)
    return Sharding(table.factors({"g"}), linear=_FIRST, split_impls=("g",))


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
    return Sharding(tuple(factors), linear=_FIRST, free=True)


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
    return Sharding(table.factors(set()), linear=_FIRST, free=True)


def expand(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """New and size-1 dims are broadcast."""
    return Sharding(_aligned(node, metas).factors(set()), linear=_FIRST, free=True)


def _unchanged(node: Node, metas: Sequence[TensorMeta], changed: set[int]) -> tuple[Factor, ...]:
    """Factors of the dims outside ``changed``, which all inputs and the output share."""
    table = FactorTable(node, len(metas), 1)
    for dim, size in enumerate(node.outputs[0].sizes):
        if dim not in changed:
            table.set(f"d{dim}", size, 0, dim, output=True)
            for index, meta in enumerate(metas):
                table.set(f"d{dim}", meta.sizes[dim], index, dim, output=False)
    return table.factors(set())


def slice_tensor(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """The sliced dim stays whole."""
    return Sharding(_unchanged(node, metas, {_dim(node, 1, len(metas[0].shape))}), linear=_FIRST, free=True)


def cat(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """The concatenated dim stays whole; P when all are P."""
    factors = _unchanged(node, metas, {_dim(node, 1, len(node.outputs[0].shape)) if len(node.args) > 1 else 0})
    return Sharding(factors, linear=(frozenset(range(len(metas))),))


def pad(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Padded dims stay whole."""
    widths = node.args[1]
    ndim = len(metas[0].shape)
    changed = {ndim - 1 - at // 2 for at, width in enumerate(widths) if width}
    value = node.args[2] if len(node.args) > 2 else 0
    return Sharding(_unchanged(node, metas, changed), linear=_FIRST if value == 0 else ())


def sum_dims(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """A split reduced dim leaves a partial sum."""
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
    return Sharding(table.factors(set()), linear=_FIRST)
