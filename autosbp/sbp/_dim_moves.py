"""Sharding rules of ops that rearrange or reduce some dims: these stay whole, all others may be split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from autosbp.graph.ir import Node, TensorMeta
from autosbp.sbp._common import LINEAR_IN_FIRST, unchanged_dim_factors
from autosbp.sbp.factor_notation import Factor, FactorTable, Rule, Sharding

Dims = Callable[[Node, int], set[int]]


def dims_from_argument(position: int, *, all_when_empty: bool = False) -> Dims:
    """Dims that the argument at ``position`` names: an int, several, or none."""

    def dims(node: Node, ndim: int) -> set[int]:
        given = node.args[position] if len(node.args) > position else None
        several = given if isinstance(given, tuple) else () if given is None else (given,)
        found = {dim % ndim for dim in several} if ndim else set()
        return set(range(ndim)) if all_when_empty and not found else found

    return dims


def last_dims(count: int) -> Dims:
    """The last ``count`` dims."""
    return lambda _, ndim: set(range(max(ndim - count, 0), ndim))


def rearrangement_rule(dims: Dims, *, linear: bool = True) -> Rule:
    """Rule of an op that changes only ``dims``: flip, roll, triu, padding, interpolation."""

    def rule(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
        changed = dims(node, len(metas[0].shape))
        every = tuple(frozenset(range(len(metas))) for _ in (0,) if linear)
        return Sharding(unchanged_dim_factors(node, metas, changed), linear=every)

    return rule


def whole_dim_reduction_rule(dims: Dims, keep_position: int) -> Rule:
    """Rule of a reduction whose reduced dims stay whole: prod, any, variance, norms, argmax."""

    def rule(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
        gone = dims(node, len(metas[0].shape))
        keep = len(node.args) > keep_position and bool(node.args[keep_position])
        table = FactorTable(node, 1, len(node.outputs))
        at = 0
        for dim, size in enumerate(metas[0].sizes):
            if dim not in gone:
                table.set(f"d{dim}", size, 0, dim, output=False)
                for output, meta in enumerate(node.outputs):
                    table.set(f"d{dim}", meta.sizes[at], output, at, output=True)
            at += dim not in gone or keep
        return Sharding(table.factors(set()))

    return rule


def slice_scatter_rule(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of ``slice_scatter(x, part, dim, ...)`` and ``select_scatter(x, part, dim, i)``: other dims may be split."""
    target, part = metas
    dim = (node.args[2] if len(node.args) > 2 else 0) % len(target.shape)
    dropped = len(part.shape) < len(target.shape)
    table = FactorTable(node, 2, 1)
    for at, size in enumerate(target.sizes):
        if at != dim:
            table.set(f"d{at}", size, 0, at, output=False)
            inner = at - (dropped and at > dim)
            table.set(f"d{at}", part.sizes[inner], 1, inner, output=False)
            table.set(f"d{at}", size, 0, at, output=True)
    return Sharding(table.factors(set()), linear=(frozenset((0, 1)),))


def glu(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of ``glu(x, dim)``, which halves ``dim``; other dims may be split."""
    dim = (node.args[1] if len(node.args) > 1 else -1) % len(metas[0].shape)
    return Sharding(unchanged_dim_factors(node, metas, {dim}))


def leading_dims_rule(count: int, *, linear: bool = True, space: tuple[int, ...] = ()) -> Rule:
    """Rule of an op that keeps its first ``count`` dims: pixel shuffles, unfolding of windows.

    Dims in ``space`` grow or shrink by a factor, each element independently, so that they may be split as well.
    """

    def rule(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
        table = FactorTable(node, 1, 1)
        for at, size in enumerate(metas[0].sizes[:count]):
            table.set(f"d{at}", size, 0, at, output=False)
            table.set(f"d{at}", node.outputs[0].sizes[at], 0, at, output=True)
        extents = {at: gcd(metas[0].sizes[at], node.outputs[0].sizes[at]) for at in space}
        scaled = (Factor(f"d{at}", extent, (at,), (at,)) for at, extent in extents.items() if extent > 1)
        return Sharding((*table.factors(set()), *scaled), linear=LINEAR_IN_FIRST if linear else ())

    return rule


def vector_norm(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of ``linalg_vector_norm(x, order, dims, keepdim)``; order 1 is a sum, so reduced dims may be split (P)."""
    dims = dims_from_argument(2, all_when_empty=True)
    if len(node.args) < 2 or node.args[1] != 1:
        return whole_dim_reduction_rule(dims, 3)(node, metas)
    table = FactorTable(node, 1, 1)
    gone, keep, place = dims(node, len(metas[0].shape)), len(node.args) > 3 and bool(node.args[3]), 0
    for at, size in enumerate(metas[0].sizes):
        table.set(f"d{at}", size, 0, at, output=False)
        if at not in gone:
            table.set(f"d{at}", node.outputs[0].sizes[place], 0, place, output=True)
        place += at not in gone or keep
    return Sharding(table.factors(set()))
