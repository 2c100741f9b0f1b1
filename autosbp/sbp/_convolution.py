"""Rules of convolution and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from autosbp.errors import GraphError
from autosbp.graph.ir import Node, TensorMeta
from autosbp.sbp._common import FIRST
from autosbp.sbp.sharding import FactorTable, Sharding


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
    return Sharding(table.factors(set()), linear=() if "max" in node.op else FIRST)
