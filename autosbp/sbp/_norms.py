"""Sharding rules of norms and softmax. Splits of normalised dims need an implementation that combines statistics."""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.errors import GraphError
from autosbp.graph.ir import Node, Ref, TensorMeta
from autosbp.sbp._common import broadcast_factors, dim_argument
from autosbp.sbp.factor_notation import FactorTable, Sharding


def layer_norm(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule ``b... d..., [d...], [d...] -> b... d... | whole d``; also of RMS norm, which has no bias."""
    lead = len(metas[0].shape) - len(node.args[1])
    names = [f"b{dim}" for dim in range(lead)] + [f"d{dim}" for dim in range(len(node.args[1]))]
    table = FactorTable(node, len(metas), 1)
    table.hold(0, names, metas[0], output=False)
    table.hold(0, names, node.outputs[0], output=True)
    for index in range(1, len(metas)):
        table.hold(index, names[lead:], metas[index], output=False)
    return Sharding(table.factors({"d"}), split_impls=tuple(names[lead:]))


def batch_norm(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule ``n c s..., [c], [c], [c], [c] -> n c s...``; in training, statistics run over n and s."""
    training = bool(node.args[5])
    if training and any(isinstance(arg, Ref) for arg in node.args[3:5]):
        raise GraphError(f"{node.name}.args[3]", node.args[3], "expected training mode without running statistics")
    space = [f"s{dim}" for dim in range(len(metas[0].shape) - 2)]
    table = FactorTable(node, len(metas), 1)
    table.hold(0, ["n", "c", *space], metas[0], output=False)
    table.hold(0, ["n", "c", *space], node.outputs[0], output=True)
    for index in range(1, len(metas)):
        table.hold(index, ["c"], metas[index], output=False)
    return Sharding(table.factors({"n", "s"} if training else set()), split_impls=("n", *space) if training else ())


def group_norm(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule ``n (g c) s..., [(g c)], [(g c)] -> n (g c) s...``: axes split whole groups or spatial dims.

    With a single group they may split its channels. The number of groups on a rank is an argument of the op, so that
    even whole groups need a split implementation.
    """
    channels, groups = metas[0].sizes[1], node.args[1]
    if channels % groups:
        raise GraphError(f"{node.name}.args[1]", groups, f"expected a divisor of {channels} channels")
    name, size = ("c", channels) if groups == 1 else ("g", groups)
    table = FactorTable(node, len(metas), 1)
    for output, meta in ((False, metas[0]), (True, node.outputs[0])):
        table.set("n", meta.sizes[0], 0, 0, output=output)
        for dim in range(2, len(meta.shape)):
            table.set(f"s{dim - 2}", meta.sizes[dim], 0, dim, output=output)
        table.set(name, size, 0, 1, output=output)
    for index in range(1, len(metas)):
        if metas[index].sizes != (channels,):
            raise GraphError(f"{node.name}.inputs[{index}].shape", list(metas[index].shape), f"expected [{channels}]")
        table.set(name, size, index, 0, output=False)
    space = tuple(f"s{dim}" for dim in range(len(metas[0].shape) - 2))
    return Sharding(table.factors({name, "s"}), split_impls=(name, *space))


def softmax(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of softmax and log-softmax along a dim."""
    dim = dim_argument(node, 1, len(metas[0].shape))
    return Sharding(broadcast_factors(node, metas[:1]).factors({f"d{dim}"}), split_impls=(f"d{dim}",))
