"""Canonical forms of shape ops: reshape with the whole output shape, permute, expand, slice; casts as ``to.dtype``."""

from __future__ import annotations

from collections.abc import Mapping

from autosbp.graph.ir import DType, LogicalGraph, Node, Ref
from autosbp.graph.passes._op_rewrites import NodeBuilder, Rewrite, argument, rewrite, sizes
from autosbp.graph.passes._slicing import SLICING_REWRITES

_RESHAPES = (
    "view.default", "_unsafe_view.default", "reshape.default", "flatten.using_ints", "unflatten.int", "squeeze.dim",
    "squeeze.dims", "squeeze.default", "unsqueeze.default", "view_as.default", "reshape_as.default", "ravel.default",
    "atleast_1d.default", "atleast_2d.default", "atleast_3d.default",
)  # fmt: skip
_EXPANDS = ("expand.default", "expand_as.default", "broadcast_to.default")
_CASTS = (
    "to.dtype",
    "to.dtype_layout",
    "_to_copy.default",
    "to.device",
    "type_as.default",
    "to.other",
    "float.default",
)
_PERMUTES = (
    "t.default", "transpose.int", "swapaxes.default", "swapdims.default", "permute.default", "numpy_T.default",
    "mT.default", "mH.default", "matrix_H.default", "adjoint.default", "movedim.int", "movedim.intlist", "moveaxis.int",
    "moveaxis.intlist",
)  # fmt: skip
_NO_END = 2**62


def canonical_views(graph: LogicalGraph) -> LogicalGraph:
    """Rewrite every op that only moves, selects or repeats elements."""
    return rewrite(graph, _CHANGES)


def _reshape(build: NodeBuilder, node: Node) -> Ref:
    shape = node.outputs[0].shape
    return build.op("reshape.default", node.args[0], sizes(shape), shape=shape, dtype=node.outputs[0].dtype)


def _expand(build: NodeBuilder, node: Node) -> Ref:
    shape = node.outputs[0].shape
    return build.op("expand.default", node.args[0], sizes(shape), shape=shape, dtype=node.outputs[0].dtype)


def _cast(build: NodeBuilder, node: Node) -> Ref:
    out = node.outputs[0]
    return build.op("to.dtype", node.args[0], DType(out.dtype), shape=out.shape, dtype=out.dtype)


def _permute(build: NodeBuilder, node: Node) -> Ref:
    out = node.outputs[0]
    return build.op("permute.default", node.args[0], _order(node, len(out.shape)), shape=out.shape, dtype=out.dtype)


def _order(node: Node, ndim: int) -> tuple[int, ...]:
    """The dims of the input in the order of the output's dims."""
    name = node.op.split(".")[1]
    order = list(range(ndim))
    if name == "permute":
        return tuple(dim % ndim for dim in node.args[1])
    if name in ("transpose", "swapaxes", "swapdims"):
        one, two = node.args[1] % ndim, node.args[2] % ndim
        order[one], order[two] = order[two], order[one]
        return tuple(order)
    if name in ("movedim", "moveaxis"):
        sources, targets = (
            tuple(dim % ndim for dim in (arg if isinstance(arg, tuple) else (arg,))) for arg in node.args[1:3]
        )
        kept = iter(dim for dim in order if dim not in sources)
        placed = dict(zip(targets, sources, strict=True))
        return tuple(placed[at] if at in placed else next(kept) for at in range(ndim))
    if name in ("t", "numpy_T"):
        return tuple(reversed(order))
    return (*order[:-2], order[-1], order[-2])


def _slice(build: NodeBuilder, node: Node) -> Ref | None:
    """Slice with explicit defaults: ``stop`` is None for the end of the dim, and negative bounds become non-negative."""
    out = node.outputs[0]
    args = [*node.args, *(None, 0, None, None, 1)[len(node.args) :]]
    source, dim, start, stop, step = args
    shape = build.shape(source)
    dim = (dim or 0) % len(shape)
    size = shape[dim]
    start = 0 if start is None else start
    stop = None if isinstance(stop, int) and stop >= _NO_END else stop
    if isinstance(size, int) and isinstance(start, int) and (stop is None or isinstance(stop, int)):
        start, stop, _ = slice(start, stop, step).indices(size)
        stop = None if stop == size else stop
    return build.op("slice.Tensor", source, dim, start, stop, step, shape=out.shape, dtype=out.dtype)


def _narrow(build: NodeBuilder, node: Node) -> Ref | None:
    source, dim, start, length = node.args[:4]
    size = build.shape(source)[dim]
    if not isinstance(start, int) or not isinstance(length, int) or (start < 0 and not isinstance(size, int)):
        return None
    start = start + size if start < 0 and isinstance(size, int) else start
    return build.slice(source, dim % len(build.shape(source)), start, start + length)


def _pad(build: NodeBuilder, node: Node) -> Ref | None:
    mode = argument(node, 2, "constant", "mode")
    if mode != "constant":
        return None
    out, value = node.outputs[0], argument(node, 3, None, "value")
    return build.op(
        "constant_pad_nd.default", node.args[0], node.args[1], 0 if value is None else value, shape=out.shape,
        dtype=out.dtype,
    )  # fmt: skip


def _table(names: tuple[str, ...], change: Rewrite) -> Mapping[str, Rewrite]:
    return {f"aten.{name}": change for name in names}


_CHANGES: Mapping[str, Rewrite] = {
    **_table(_RESHAPES, _reshape),
    **_table(_EXPANDS, _expand),
    **_table(_CASTS, _cast),
    **_table(_PERMUTES, _permute),
    **_table(("slice.Tensor",), _slice),
    **_table(("narrow.default",), _narrow),
    **_table(("pad.default",), _pad),
    **SLICING_REWRITES,
}
