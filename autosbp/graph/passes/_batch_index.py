"""Picks of one position per sample, ``x[torch.arange(batch), position]``, as a gather, which batches may split."""

from __future__ import annotations

from autosbp.graph.ir import LogicalGraph, Node, Ref, Sym
from autosbp.graph.passes._graph_edits import producers
from autosbp.graph.passes._op_rewrites import NodeBuilder, rewrite

_ARANGES = frozenset(f"aten.arange.{name}" for name in ("default", "start", "start_step"))
_INDICES = frozenset(("int64",))


def batch_indices_to_gather(graph: LogicalGraph) -> LogicalGraph:
    """Replace ``index(x, (arange(n), position))``, where ``n`` is the size of dim 0, by ``gather`` along dim 1."""
    made_by = producers(graph)

    def change(build: NodeBuilder, node: Node) -> Ref | None:
        source, picks = node.args[:2]
        if len(picks) != 2 or not all(isinstance(each, Ref) for each in picks):
            return None
        shape, position = build.shape(source), build.meta(picks[1])
        counted = _is_arange(made_by.get(picks[0].name), shape[0]) and build.shape(picks[0]) == shape[:1]
        if not counted or len(shape) < 2 or position.shape != shape[:1] or position.dtype not in _INDICES:
            return None
        if not isinstance(shape[1], int):
            return None
        rest = shape[2:]
        valid = build.same("remainder.Scalar", picks[1], shape[1])  # negative positions count from the end
        column = build.expand(build.reshape(valid, (shape[0], 1, *(1 for _ in rest))), (shape[0], 1, *rest))
        found = build.op(
            "gather.default", source, 1, column, shape=(shape[0], 1, *rest), dtype=build.meta(source).dtype
        )
        return build.reshape(found, (shape[0], *rest))

    return rewrite(graph, {"aten.index.Tensor": change})


def _is_arange(node: Node | None, size: int | str) -> bool:
    """Whether a node counts from 0 to ``size``."""
    if node is None or node.op not in _ARANGES:
        return False
    args = node.args if node.op != "aten.arange.default" else (0, *node.args)
    end = args[1].expr if isinstance(args[1], Sym) else args[1]
    return args[0] == 0 and end == size and (len(args) < 3 or args[2] == 1)
