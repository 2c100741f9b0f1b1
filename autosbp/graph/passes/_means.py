"""Rewrite means as sums, so that a sharded mean is a partial sum divided by the full count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autosbp.graph.ir import DType, LogicalGraph, Node, Ref
from autosbp.graph.passes._op_rewrites import NodeBuilder, Rewrite, argument, count, rewrite

HALVES = frozenset(("float16", "bfloat16"))


def explicit_means(graph: LogicalGraph) -> LogicalGraph:
    """Replace ``mean(x, dims)`` by ``sum(x, dims) / n``, unless a size is a sum of symbols."""
    return rewrite(graph, _CHANGES)


def build_sum(build: NodeBuilder, source: Ref, dims: Sequence[int] | None, dtype: str, *, keep: bool = False) -> Ref:
    """The sum of ``source`` in ``dtype`` over ``dims``, or over all dims."""
    shape = build.shape(source)
    kwargs = {} if build.meta(source).dtype == dtype else {"dtype": DType(dtype)}
    if dims is None:
        return build.op("sum.default", source, shape=(), dtype=dtype, kwargs=kwargs)
    over = {dim % len(shape) for dim in dims}
    left = [1 if dim in over else size for dim, size in enumerate(shape) if keep or dim not in over]
    return build.op("sum.dim_IntList", source, tuple(dims), keep, shape=left, dtype=dtype, kwargs=kwargs)


def accumulation_dtype(dtype: str) -> str:
    """The dtype in which torch accumulates ``dtype``; a sum must keep it until it is divided."""
    return "float32" if dtype in HALVES else dtype


def _mean(build: NodeBuilder, node: Node) -> Ref | None:
    source, out = node.args[0], node.outputs[0]
    shape = build.shape(source)
    given = argument(node, 1, None, "dim") if node.op == "aten.mean.dim" else None
    dims = tuple(range(len(shape))) if given is None or given == () else tuple(given)
    number = count([shape[dim] for dim in dims])
    if number is None:
        return None
    keep = bool(argument(node, 2, False, "keepdim"))
    added = build_sum(build, source, dims, accumulation_dtype(out.dtype), keep=keep)
    divisor = float(number) if isinstance(number, int) else number
    return build.cast(build.same("div.Tensor", added, divisor), out.dtype)


_CHANGES: Mapping[str, Rewrite] = {"aten.mean.dim": _mean, "aten.mean.default": _mean}
