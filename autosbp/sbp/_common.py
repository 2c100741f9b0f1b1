"""Helpers shared by the op rules: broadcasts, dims given as arguments, unchanged dims."""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.errors import GraphError
from autosbp.graph.ir import Node, TensorMeta
from autosbp.sbp.factor_notation import Factor, FactorTable

LINEAR_IN_FIRST = (frozenset((0,)),)
"""The op is linear in its first tensor."""


def broadcast_factors(node: Node, metas: Sequence[TensorMeta]) -> FactorTable:
    """Factors of a broadcasting op: dims are aligned at the right; broadcast dims have none."""
    out = node.outputs[0]
    table = FactorTable(node, len(metas), len(node.outputs))
    names = [f"d{dim}" for dim in range(len(out.shape))]
    table.hold(0, names, out, output=True)
    for index, meta in enumerate(metas):
        shift = len(out.shape) - len(meta.shape)
        if shift < 0:
            raise GraphError(
                f"{node.name}.inputs[{index}].shape", list(meta.shape), (f"expected at most {len(out.shape)} dims")
            )
        for dim, size in enumerate(meta.sizes):
            if size != 1 or out.sizes[dim + shift] == 1:
                table.set(names[dim + shift], size, index, dim, output=False)
    return table


def dim_argument(node: Node, position: int, ndim: int) -> int:
    dim = node.args[position] if len(node.args) > position else -1
    if not isinstance(dim, int) or not -ndim <= dim < ndim:
        raise GraphError(f"{node.name}.args[{position}]", dim, f"expected a dim in [{-ndim}, {ndim - 1}]")
    return dim % ndim


def unchanged_dim_factors(node: Node, metas: Sequence[TensorMeta], changed: set[int]) -> tuple[Factor, ...]:
    """Factors of the dims outside ``changed``, which all inputs and the output share."""
    table = FactorTable(node, len(metas), 1)
    for dim, size in enumerate(node.outputs[0].sizes):
        if dim not in changed:
            table.set(f"d{dim}", size, 0, dim, output=True)
            for index, meta in enumerate(metas):
                table.set(f"d{dim}", meta.sizes[dim], index, dim, output=False)
    return table.factors(set())
