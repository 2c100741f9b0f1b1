"""What the op rules share: broadcasts, dims given as arguments, dims that stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.errors import GraphError
from autosbp.graph.ir import Node, TensorMeta
from autosbp.sbp.sharding import Factor, FactorTable

FIRST = (frozenset((0,)),)
"""Linear in the first tensor."""


def aligned(node: Node, metas: Sequence[TensorMeta]) -> FactorTable:
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


def dim_argument(node: Node, position: int, ndim: int) -> int:
    dim = node.args[position] if len(node.args) > position else -1
    if not isinstance(dim, int) or not -ndim <= dim < ndim:
        raise GraphError(f"{node.name}.args[{position}]", dim, f"a dim in [{-ndim}, {ndim - 1}] is expected")
    return dim % ndim


def unchanged(node: Node, metas: Sequence[TensorMeta], changed: set[int]) -> tuple[Factor, ...]:
    """Factors of the dims outside ``changed``, which all inputs and the output share."""
    table = FactorTable(node, len(metas), 1)
    for dim, size in enumerate(node.outputs[0].sizes):
        if dim not in changed:
            table.set(f"d{dim}", size, 0, dim, output=True)
            for index, meta in enumerate(metas):
                table.set(f"d{dim}", meta.sizes[dim], index, dim, output=False)
    return table.factors(set())
