"""Sharding of an op whose rule is stored in its graph (``autosbp.graph.discovered_rules``)."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from autosbp.errors import GraphError
from autosbp.graph.custom_functions import scan_of
from autosbp.graph.discovered_rules import DiscoveredOption, DiscoveredRule
from autosbp.graph.int_attributes import attribute
from autosbp.graph.ir import Node, TensorMeta
from autosbp.sbp.factor_notation import AxisOption, Sharding
from autosbp.sbp.layout import B, Sbp, parse_sbp

_OPERANDS = 3


def discovered_sharding(rule: DiscoveredRule, node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """The rule at the node's shapes, without options of extent 1.

    Raises:
        GraphError: the rule names a dim, argument or attribute that the node lacks.
    """
    options = [_option(option, node, metas, at) for at, option in enumerate(rule.options)]
    for field, sizes in (("sizes", rule.sizes), ("workspace_sizes", rule.workspace_sizes)):
        for tensor, dim in sizes:
            if tensor >= len(metas) or dim >= len(metas[tensor].shape):
                raise GraphError(
                    f"{node.name}.rule.{field}", [tensor, dim], (f"expected a dim of a tensor argument of {node.op}")
                )
    for place in rule.saved:
        if place >= len(metas):
            raise GraphError(f"{node.name}.rule.saved", place, f"expected a tensor argument of {node.op}")
    launches, traffic = _steps(node, metas)
    return Sharding(
        (),
        flops=rule.flops * prod(metas[tensor].sizes[dim] for tensor, dim in rule.sizes),
        random=rule.random,
        extra=tuple(option for option in options if option.size != 1),
        launches=launches,
        traffic=traffic,
    )


def _steps(node: Node, metas: Sequence[TensorMeta]) -> tuple[tuple[float, float], float]:
    """``launches`` and ``traffic`` of an op: each kernel of a scan's step reads two tensors as large as a state, writes one."""
    scan = scan_of(node.op)
    if scan is None:
        return (1.0, 1.0), 1.0
    length = metas[scan.carries].sizes[0]
    forward, backward = (float(length * count) for count in scan.kernels)
    moved = forward * _OPERANDS * max(meta.num_bytes for meta in metas[: scan.carries])
    return (forward, backward), max(1.0, moved / sum(meta.num_bytes for meta in (*metas, *node.outputs)))


def _option(option: DiscoveredOption, node: Node, metas: Sequence[TensorMeta], at: int) -> AxisOption:
    field = f"{node.name}.rule.options[{at}]"
    ins, outs = (tuple(map(parse_sbp, states)) for states in (option.ins, option.outs))
    for name, states, tensors in (("ins", ins, metas), ("outs", outs, node.outputs)):
        if len(states) != len(tensors):
            raise GraphError(f"{field}.{name}", len(states), f"{node.op} expects {len(tensors)} layouts")
        for sbp, meta in zip(states, tensors, strict=True):
            if sbp.is_split and sbp.dim >= len(meta.shape):
                raise GraphError(f"{field}.{name}", str(sbp), f"expected a dim of {list(meta.shape)}")
    size = 0
    for sbp, meta in zip((*ins, *outs), (*metas, *node.outputs), strict=True):
        if sbp.is_split:
            size = gcd(size, meta.sizes[sbp.dim])
    for path in option.divided:
        size = gcd(size, _divisible(node, path, field))
    if size == 0:
        return AxisOption("P", ins, outs, False)
    return AxisOption(f"f{at}", ins, outs, divides_work(outs), size, divided=option.divided)


def divides_work(outs: Sequence[Sbp]) -> bool:
    """Whether an axis with these outputs divides the work; it does not if every device holds the whole result (B)."""
    return any(sbp != B for sbp in outs)


def _divisible(node: Node, path: tuple[int | str, ...], field: str) -> int:
    try:
        value = attribute(node.args, node.kwargs, path)
    except (IndexError, KeyError, TypeError):
        value = None
    if type(value) is not int or value < 1:
        raise GraphError(
            f"{field}.divided", list(path), (f"expected the index of a positive integer argument of {node.op}")
        )
    return value
