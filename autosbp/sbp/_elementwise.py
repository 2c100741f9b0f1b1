"""Sharding rules of element-wise ops with broadcasting."""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.graph.ir import Node, Ref, TensorMeta
from autosbp.sbp._common import LINEAR_IN_FIRST, broadcast_factors
from autosbp.sbp.factor_notation import Rule, Sharding


def pointwise(linear: str) -> Rule:
    """Rule of an element-wise op; ``linear`` lists sets of argument positions, as in ``notation``."""
    sets = tuple(frozenset(int(position) for position in part.split()) for part in linear.split(";") if part.strip())

    def rule(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
        table = broadcast_factors(node, metas)
        tensors = [position for position, arg in enumerate(node.args) if isinstance(arg, Ref)]
        # Every operand of a linear set must be a tensor of numbers: adding a scalar or dividing a scalar by a tensor is
        # not linear, and bools have no sum.
        numbers = {position for position, meta in zip(tensors, metas, strict=True) if meta.dtype != "bool"}
        usable = (inputs for inputs in sets if inputs <= numbers)
        return Sharding(
            table.factors(set()),
            linear=tuple(frozenset(tensors.index(position) for position in inputs) for inputs in usable),
        )

    return rule


def masked_fill(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of ``masked_fill(x, mask, value)``; linear in x if the value is 0."""
    value = node.args[2]
    return Sharding(broadcast_factors(node, metas).factors(set()), linear=LINEAR_IN_FIRST if value == 0 else ())


def where_number(position: int) -> Rule:
    """Rule of ``where`` with a number as argument ``position``; linear in the tensor if the number is 0."""

    def rule(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
        linear = (frozenset((1,)),) if node.args[position] == 0 else ()
        return Sharding(broadcast_factors(node, metas).factors(set()), linear=linear)

    return rule


def to_dtype(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of a cast; linear (accepts partial sums) only from numbers to a float type."""
    linear = LINEAR_IN_FIRST if metas[0].dtype != "bool" and node.outputs[0].is_float else ()
    return Sharding(broadcast_factors(node, metas).factors(set()), linear=linear)


def dropout(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of ``dropout(x, p, train)``: random and not linear, unless p is 0 or ``train`` is false.

    Each shard draws its own mask; replicas draw the same one.
    """
    probability, train = node.args[1:3]
    random = bool(train and probability)
    return Sharding(
        broadcast_factors(node, metas).factors(set()), linear=() if random else LINEAR_IN_FIRST, random=random
    )
