"""Rules of element-wise ops with broadcasting."""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.graph.ir import Node, Ref, TensorMeta
from autosbp.sbp._common import FIRST, aligned
from autosbp.sbp.sharding import Rule, Sharding


def pointwise(linear: str) -> Rule:
    """An element-wise op with broadcasting; ``linear`` names sets of argument positions, as in ``notation``."""
    sets = tuple(frozenset(int(position) for position in part.split()) for part in linear.split(";") if part.strip())

    def rule(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
        table = aligned(node, metas)
        tensors = [position for position, arg in enumerate(node.args) if isinstance(arg, Ref)]
        # All operands of a set must be tensors: adding a number is not linear, nor is a number over a tensor. Truth values
        # have no sum.
        numbers = {position for position, meta in zip(tensors, metas, strict=True) if meta.dtype != "bool"}
        usable = (inputs for inputs in sets if inputs <= numbers)
        return Sharding(
            table.factors(set()),
            linear=tuple(frozenset(tensors.index(position) for position in inputs) for inputs in usable),
        )

    return rule


def masked_fill(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """``masked_fill(x, mask, value)``; linear in x when the value is 0."""
    value = node.args[2]
    return Sharding(aligned(node, metas).factors(set()), linear=FIRST if value == 0 else ())


def where_number(position: int) -> Rule:
    """``where`` with a number as argument ``position``; linear in the tensor when it is 0."""

    def rule(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
        linear = (frozenset((1,)),) if node.args[position] == 0 else ()
        return Sharding(aligned(node, metas).factors(set()), linear=linear)

    return rule


def to_dtype(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """A cast; partial sums survive casts of numbers to float types only."""
    linear = FIRST if metas[0].dtype != "bool" and node.outputs[0].is_float else ()
    return Sharding(aligned(node, metas).factors(set()), linear=linear)


def dropout(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """``dropout(x, p, train)``. Random: each shard draws its own mask, replicas the same one; not linear across ranks. It
    leaves x alone where p is 0 or ``train`` is false."""
    probability, train = node.args[1:3]
    random = bool(train and probability)
    return Sharding(aligned(node, metas).factors(set()), linear=() if random else FIRST, random=random)
