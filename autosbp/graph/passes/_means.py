"""Means written as sums, so that a split mean is a partial sum with the whole count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autosbp.graph.ir import DType, LogicalGraph, Node, Ref
from autosbp.graph.passes._build import Builder, Change, argument, count, rewrite

HALVES = frozenset(("float16", "bfloat16"))


def explicit_means(graph: LogicalGraph) -> LogicalGraph:
    """``mean(x, dims)`` becomes ``sum(x, dims) / n``; where a size is a sum of symbols it stays."""
    return rewrite(graph, _CHANGES)


def total(build: Builder, source: Ref, dims: Sequence[int] | None, dtype: str, *, keep: bool = False) -> Ref:
    """The sum of ``source`` in ``dtype`` over ``dims``, or over all."""
    shape = build.shape(source)
    kwargs = {} if build.meta(source).dtype == dtype else {"dtype": DType(dtype)}
    if dims is None:
        return build.op("sum.default", source, shape=(), dtype=dtype, kwargs=kwargs)
    over = {dim % len(shape) for dim in dims}
    left = [1 if dim in over else size for dim, size in enumerate(shape) if keep or dim not in over]
    return build.op("sum.dim_IntList", source, tuple(dims), keep, shape=left, dtype=dtype, kwargs=kwargs)


def wide(dtype: str) -> str:
    """The dtype in which torch adds up numbers of ``dtype``, and in which a sum must stay until it is divided."""
    return "float32" if dtype in HALVES else dtype


def _mean(build: Builder, node: Node) -> Ref | None:
    source, out = node.args[0], node.outputs[0]
    shape = build.shape(source)
    given = argument(node, 1, None, "dim") if node.op == "aten.mean.dim" else None
    dims = tuple(range(len(shape))) if given is None or given == () else tuple(given)
    number = count([shape[dim] for dim in dims])
    if number is None:
        return None
    keep = bool(argument(node, 2, False, "keepdim"))
    added = total(build, source, dims, wide(out.dtype), keep=keep)
    divisor = float(number) if isinstance(number, int) else number
    return build.cast(build.same("div.Tensor", added, divisor), out.dtype)


_CHANGES: Mapping[str, Change] = {"aten.mean.dim": _mean, "aten.mean.default": _mean}
