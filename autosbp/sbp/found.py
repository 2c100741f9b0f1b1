"""The sharding of an op whose rule is data in its graph (``autosbp.graph.found``)."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from autosbp.errors import GraphError
from autosbp.graph.attributes import attribute
from autosbp.graph.found import FoundOption, FoundRule
from autosbp.graph.ir import Node, TensorMeta
from autosbp.sbp.placement import B, Sbp, parse_sbp
from autosbp.sbp.sharding import AxisOption, Sharding


def found_sharding(rule: FoundRule, node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """The rule at the node's shapes; options that nothing can divide are left out. A layout or attribute that the node
    lacks is a ``GraphError``."""
    options = [_option(option, node, metas, at) for at, option in enumerate(rule.options)]
    for field, sizes in (("sizes", rule.sizes), ("workspace_sizes", rule.workspace_sizes)):
        for tensor, dim in sizes:
            if tensor >= len(metas) or dim >= len(metas[tensor].shape):
                raise GraphError(f"{node.name}.rule.{field}", [tensor, dim], f"a dim of a tensor argument of {node.op}")
    for place in rule.saved:
        if place >= len(metas):
            raise GraphError(f"{node.name}.rule.saved", place, f"a tensor argument of {node.op} is expected")
    return Sharding(
        (),
        flops=rule.flops * prod(metas[tensor].sizes[dim] for tensor, dim in rule.sizes),
        random=rule.random,
        extra=tuple(option for option in options if option.size != 1),
    )


def _option(option: FoundOption, node: Node, metas: Sequence[TensorMeta], at: int) -> AxisOption:
    field = f"{node.name}.rule.options[{at}]"
    ins, outs = (tuple(map(parse_sbp, states)) for states in (option.ins, option.outs))
    for name, states, tensors in (("ins", ins, metas), ("outs", outs, node.outputs)):
        if len(states) != len(tensors):
            raise GraphError(f"{field}.{name}", len(states), f"{len(tensors)} layouts are expected by {node.op}")
        for sbp, meta in zip(states, tensors, strict=True):
            if sbp.is_split and sbp.dim >= len(meta.shape):
                raise GraphError(f"{field}.{name}", str(sbp), f"a dim of {list(meta.shape)} is expected")
    size = 0
    for sbp, meta in zip((*ins, *outs), (*metas, *node.outputs), strict=True):
        if sbp.is_split:
            size = gcd(size, meta.sizes[sbp.dim])
    for path in option.divided:
        size = gcd(size, _divisible(node, path, field))
    if size == 0:
        return AxisOption("P", ins, outs, False)
    return AxisOption(f"f{at}", ins, outs, divides(outs), size, divided=option.divided)


def divides(outs: Sequence[Sbp]) -> bool:
    """Whether an axis with these outputs has a part of the work: it does not where each device has the whole result."""
    return any(sbp != B for sbp in outs)


def _divisible(node: Node, path: tuple[int | str, ...], field: str) -> int:
    try:
        value = attribute(node.args, node.kwargs, path)
    except (IndexError, KeyError, TypeError):
        value = None
    if type(value) is not int or value < 1:
        raise GraphError(f"{field}.divided", list(path), f"the place of a positive integer of {node.op} is expected")
    return value
