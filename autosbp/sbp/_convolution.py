"""Sharding rules of convolution and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from autosbp.errors import GraphError
from autosbp.graph.ir import Node, TensorMeta
from autosbp.sbp._common import LINEAR_IN_FIRST
from autosbp.sbp._pooling_windows import pooling_options, window_options
from autosbp.sbp.factor_notation import AxisOption, FactorTable, Rule, Sharding
from autosbp.sbp.layout import S


def convolution(spatial: int, *, transposed: bool = False) -> Rule:
    """Rule of a convolution: ``n ci [space], co ci [kernel], +[co] -> n co [space]``.

    Axes may split batch, filters and channels; whole groups of filters and channels if there are several groups; and
    spatial dims under windows that do not overlap. A transposed convolution's weight is ``ci co [kernel]``. The input
    may lack the batch dim.
    """

    def rule(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
        x, weight, out = metas[0], metas[1], node.outputs[0]
        lead = len(x.shape) - spatial - 1
        if lead not in (0, 1) or len(weight.shape) != spatial + 2 or len(out.shape) != len(x.shape):
            limit = f"expected a convolution over {spatial} dims"
            raise GraphError(f"{node.name}.shape", list(x.shape), limit)
        groups = int(node.args[6]) if len(node.args) > 6 else 1
        filters, channels = (1, 0) if transposed else (0, 1)
        table = FactorTable(node, len(metas), 1)
        if lead:
            table.set("n", x.sizes[0], 0, 0, output=False)
            table.set("n", out.sizes[0], 0, 0, output=True)
        if groups == 1:
            table.set("co", weight.sizes[filters], 1, filters, output=False)
            table.set("co", out.sizes[lead], 0, lead, output=True)
            if len(metas) > 2:
                table.set("co", metas[2].sizes[0], 2, 0, output=False)
            table.set("ci", x.sizes[lead], 0, lead, output=False)
            table.set("ci", weight.sizes[channels], 1, channels, output=False)
        points = prod(x.sizes) if transposed else prod(out.sizes)
        flops = 2.0 * points * prod(weight.sizes[1:])
        linear = (frozenset((0,)), frozenset((1,)))
        extra = _grouped(metas, lead, groups)
        extra += window_options(node, metas, spatial, weight.sizes[2:], (3, 4, 7 if transposed else 5))
        additive = frozenset((2,)) if len(metas) > 2 else frozenset()
        return Sharding(table.factors(set()), additive, linear, flops, extra=extra)

    return rule


def _grouped(metas: Sequence[TensorMeta], lead: int, groups: int) -> tuple[AxisOption, ...]:
    """Split by whole groups; each device runs with fewer groups, so the groups argument is divided too."""
    if groups == 1:
        return ()
    ins = (S(lead), S(0), *(S(0) for _ in metas[2:]))
    return (AxisOption("g", ins, (S(lead),), True, groups, divided=((6,),)),)


def pooling(spatial: int) -> Rule:
    """Rule of a pooling: ``n c [space] -> n c [space']`` for every output; space splits if windows do not overlap."""

    def rule(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
        table = FactorTable(node, 1, len(node.outputs))
        for dim in range(len(metas[0].shape) - spatial):
            table.set(f"b{dim}", metas[0].sizes[dim], 0, dim, output=False)
            for index, meta in enumerate(node.outputs):
                table.set(f"b{dim}", meta.sizes[dim], index, dim, output=True)
        linear = () if "max" in node.op or "lp" in node.op else LINEAR_IN_FIRST
        return Sharding(table.factors(set()), linear=linear, extra=pooling_options(node, metas, spatial))

    return rule
