"""Ops that select, repeat or join parts of a dim, rewritten with slice, reshape, expand and cat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autosbp.errors import UnsupportedError
from autosbp.graph.ir import DType, Node, Ref
from autosbp.graph.passes._op_rewrites import NodeBuilder, Rewrite, Shape, argument, sizes


def _select(build: NodeBuilder, node: Node) -> Ref | None:
    """``select(x, dim, i)``: a slice of size 1, reshaped to drop the dim."""
    source, dim, index = node.args[:3]
    shape = build.shape(source)
    at = dim % len(shape)
    size = shape[at]
    if not isinstance(index, int) or (index < 0 and not isinstance(size, int)):
        return None
    start = index + size if index < 0 and isinstance(size, int) else index
    return _select_index(build, source, at, start)


def _select_index(build: NodeBuilder, source: Ref, dim: int, index: int) -> Ref:
    shape = build.shape(source)
    return build.reshape(build.slice(source, dim, index, index + 1), (*shape[:dim], *shape[dim + 1 :]))


def _unbind(build: NodeBuilder, node: Node) -> tuple[Ref, ...]:
    """``unbind``: a select for each output."""
    source = node.args[0]
    dim = argument(node, 1, 0, "dim") % len(build.shape(source))
    return tuple(_select_index(build, source, dim, index) for index in range(len(node.outputs)))


def _split(build: NodeBuilder, node: Node) -> tuple[Ref, ...]:
    """``split``: consecutive slices."""
    source = node.args[0]
    ndim = len(build.shape(source))
    dim = argument(node, 2, 0, "dim") % ndim
    start, parts = 0, []
    for meta in node.outputs:
        size = meta.shape[dim]
        if not isinstance(size, int):
            raise UnsupportedError(
                f"{node.name}: {node.op} along the batch is not supported; split a dim of fixed size"
            )
        parts.append(build.slice(source, dim, start, start + size))
        start += size
    return tuple(parts)


def _stack(build: NodeBuilder, node: Node) -> Ref:
    """``stack(tensors, dim)``: reshape each to a dim of size 1, and concatenate."""
    shape = node.outputs[0].shape
    dim = argument(node, 1, 0, "dim") % len(shape)
    parts = [build.reshape(ref, (*shape[:dim], 1, *shape[dim + 1 :])) for ref in node.args[0]]
    return build.cat(parts, dim, shape[dim])


def _join(side_by_side: int) -> Rewrite:
    """``hstack`` and ``vstack`` of tensors with at least 2 dims (and ``hstack`` of 1)."""

    def change(build: NodeBuilder, node: Node) -> Ref | None:
        shape = node.outputs[0].shape
        if any(len(build.shape(ref)) != len(shape) for ref in node.args[0]):
            return None
        dim = side_by_side if len(shape) > side_by_side else 0
        return build.cat(node.args[0], dim, shape[dim])

    return change


def _concatenate(build: NodeBuilder, node: Node) -> Ref:
    """``cat`` with operands cast to one dtype and without empty ones (torch skips tensors of shape [0])."""
    out = node.outputs[0]
    parts: list[Ref] = [ref for ref in node.args[0] if build.shape(ref) != (0,) or out.shape == (0,)]
    parts = [build.cast(part, out.dtype) for part in parts]
    if len(parts) == 1:
        return parts[0]
    return build.op("cat.default", tuple(parts), *node.args[1:], shape=out.shape, dtype=out.dtype)


def _repeat(build: NodeBuilder, node: Node) -> Ref | None:
    """``repeat(x, counts)``: a new dim before each repeated one, expanded and merged with it."""
    source, counts, out = node.args[0], node.args[1], node.outputs[0]
    shape = build.shape(source)
    padded: Shape = (*(1,) * (len(out.shape) - len(shape)), *shape)
    counts = (*(1,) * (len(padded) - len(counts)), *counts)
    grown = tuple(count if isinstance(count, int) else count.expr for count in counts)
    return _repeated(build, source, [((1, size), (by, size)) for by, size in zip(grown, padded, strict=True)])


def _repeat_interleave(build: NodeBuilder, node: Node) -> Ref | None:
    """``repeat_interleave(x, n, dim)``: a new dim after the repeated one, expanded and merged with it."""
    source, count = node.args[:2]
    shape = build.shape(source)
    dim = argument(node, 2, None, "dim")
    if not isinstance(count, int):
        return None
    if dim is None and len(shape) != 1:
        size = 1
        for each in shape:
            if not isinstance(each, int):
                return None
            size *= each
        source, shape = build.reshape(source, (size,)), (size,)
    at = (dim or 0) % len(shape)
    pairs: list[tuple[Shape, Shape]] = [
        ((size,), (size,)) if axis != at else ((size, 1), (size, count)) for axis, size in enumerate(shape)
    ]
    return _repeated(build, source, pairs)


def _repeated(build: NodeBuilder, source: Ref, pairs: Sequence[tuple[Shape, Shape]]) -> Ref:
    """Reshape each dim to the first shape of its pair, expand to the second, reshape to the node's shape."""
    before: Shape = tuple(size for left, _ in pairs for size in left)
    after: Shape = tuple(size for _, right in pairs for size in right)
    if before == after:
        return build.reshape(source, build.node.outputs[0].shape)
    return build.reshape(build.expand(build.reshape(source, before), after), build.node.outputs[0].shape)


def _copy_or_fill(build: NodeBuilder, node: Node) -> Ref:
    """``copy(x, y)`` and ``fill(x, y)`` use only x's shape and dtype: y is cast and expanded."""
    value, out = node.args[1], node.outputs[0]
    if not isinstance(value, Ref):
        kwargs = {"dtype": DType(out.dtype)}
        return build.op("full.default", sizes(out.shape), value, shape=out.shape, dtype=out.dtype, kwargs=kwargs)
    return build.expand(build.cast(value, out.dtype), out.shape)


def _meshgrid(build: NodeBuilder, node: Node) -> tuple[Ref, ...]:
    """Each vector along its own dim, expanded over the others; ``xy`` indexing swaps the first two."""
    given: tuple[Ref, ...] = node.args[0]
    shape = node.outputs[0].shape
    dims = list(range(len(given)))
    if argument(node, 1, "ij", "indexing") == "xy" and len(dims) > 1:
        dims[0], dims[1] = dims[1], dims[0]
    grids = []
    for dim, ref in zip(dims, given, strict=True):
        one: Shape = tuple(size if at == dim else 1 for at, size in enumerate(shape))
        grids.append(build.expand(build.reshape(ref, one), shape))
    return tuple(grids)


def _broadcast(build: NodeBuilder, node: Node) -> tuple[Ref, ...]:
    return tuple(build.expand(ref, meta.shape) for ref, meta in zip(node.args[0], node.outputs, strict=True))


_NAMES: Mapping[Rewrite, tuple[str, ...]] = {
    _select: ("select.int",),
    _unbind: ("unbind.int",),
    _split: (
        "split.Tensor", "split.sizes", "split_with_sizes.default", "unsafe_split.Tensor", "chunk.default",
        "unsafe_chunk.default", "tensor_split.sections", "tensor_split.indices",
    ),
    _stack: ("stack.default",),
    _concatenate: ("cat.default", "concat.default", "concatenate.default"),
    _join(1): ("hstack.default",),
    _join(0): ("vstack.default",),
    _repeat: ("repeat.default", "tile.default"),
    _repeat_interleave: ("repeat_interleave.self_int",),
    _copy_or_fill: ("copy.default", "fill.Tensor", "fill.Scalar"),
    _meshgrid: ("meshgrid.default", "meshgrid.indexing"),
    _broadcast: ("broadcast_tensors.default",),
}  # fmt: skip
SLICING_REWRITES: Mapping[str, Rewrite] = {f"aten.{name}": change for change, names in _NAMES.items() for name in names}
"""Replacement function of each op."""
