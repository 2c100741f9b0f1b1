"""Replace indexing by an evenly increasing constant by a slice."""

from __future__ import annotations

import torch

from autosbp.graph.ir import LogicalGraph, Node, Ref
from autosbp.graph.passes._op_rewrites import NodeBuilder, rewrite
from autosbp.graph.to_fx import constant_tensor


def constant_indices_to_slices(graph: LogicalGraph) -> LogicalGraph:
    """Replace ``x[..., [2, 3]]`` and ``index_select(x, dim, [2, 3])`` by ``slice(x, dim, 2, 4)``."""
    constants = {leaf.name: leaf for leaf in graph.constants if leaf.meta.dtype in ("int64", "int32")}

    def sliced(build: NodeBuilder, source: Ref, dim: int, index: object) -> Ref | None:
        """The slice, with the index's dims in place of ``dim``; None if the index is not such a constant."""
        if not isinstance(index, Ref) or index.name not in constants:
            return None
        shape = build.shape(source)
        size, picked = shape[dim], build.shape(index)
        found = (
            _arithmetic_range(constant_tensor(constants[index.name]).flatten(), size) if isinstance(size, int) else None
        )
        if found is None:
            return None
        start, stop, step = found
        many = (stop - start + step - 1) // step
        cut = build.op(
            "slice.Tensor", source, dim, start, None if stop == size else stop, step,
            shape=(*shape[:dim], many, *shape[dim + 1 :]), dtype=build.meta(source).dtype,
        )  # fmt: skip
        return build.reshape(cut, (*shape[:dim], *picked, *shape[dim + 1 :]))

    def index(build: NodeBuilder, node: Node) -> Ref | None:
        given = [(dim, entry) for dim, entry in enumerate(node.args[1]) if entry is not None]
        return sliced(build, node.args[0], *given[0]) if len(given) == 1 else None

    def index_select(build: NodeBuilder, node: Node) -> Ref | None:
        source, dim, chosen = node.args[:3]
        return sliced(build, source, dim % max(1, len(build.shape(source))), chosen) if build.shape(chosen) else None

    return rewrite(graph, {"aten.index.Tensor": index, "aten.index_select.default": index_select})


def _arithmetic_range(values: torch.Tensor, size: int) -> tuple[int, int, int] | None:
    """(start, stop, step) of values that increase evenly within a dim of ``size``, else None."""
    counted = [value + size if value < 0 else value for value in values.tolist()]
    if not counted or not all(0 <= value < size for value in counted):
        return None
    steps = {after - before for before, after in zip(counted, counted[1:], strict=False)} or {1}
    step = steps.pop()
    return (counted[0], counted[-1] + 1, step) if not steps and step >= 1 else None
