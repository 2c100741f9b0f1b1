"""Ops that take one index of a dim, or repeat one, written with slice, reshape, expand and cat."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autosbp.graph.ir import Arg, DType, Node, Ref, Sym, TensorMeta
from autosbp.graph.passes._edit import simple

Shape = tuple[int | str, ...]
Meta = Callable[[Ref], TensorMeta]
"""What is known of a value, also of one that the pass has just made."""


def sizes(shape: Shape) -> tuple[Arg, ...]:
    """A shape as an argument."""
    return tuple(dim if isinstance(dim, int) else Sym(dim) for dim in shape)


def select(meta: Meta, node: Node) -> list[Node]:
    """``select(x, dim, i)``: a slice of one, without its dim."""
    source, dim, index = node.args[:3]
    shape = meta(source).shape
    at = dim % len(shape)
    size = shape[at]
    if not isinstance(index, int) or (index < 0 and not isinstance(size, int)):
        return [node]
    start = index + size if index < 0 and isinstance(size, int) else index
    return _one(node.name, source, shape, at, start, node.outputs[0])


def unbound(meta: Meta, node: Node, pieces: dict[Ref, Ref]) -> list[Node]:
    """``unbind(x, dim)`` as one select each; ``pieces`` learns their names."""
    source = node.args[0]
    shape = meta(source).shape
    at = (node.args[1] if len(node.args) > 1 else 0) % len(shape)
    nodes: list[Node] = []
    for index, out in enumerate(node.outputs):
        name = f"{node.name}.{index}"
        nodes += _one(name, source, shape, at, index, out)
        pieces[Ref(node.name, index)] = Ref(name)
    return nodes


def _one(name: str, source: Ref, shape: Shape, dim: int, index: int, out: TensorMeta) -> list[Node]:
    cut = simple(
        f"{name}.cut", "aten.slice.Tensor", (source, dim, index, index + 1, 1), (*shape[:dim], 1, *shape[dim + 1 :]),
        out.dtype,
    )  # fmt: skip
    return [cut, simple(name, "aten.reshape.default", (Ref(cut.name), sizes(out.shape)), out.shape, out.dtype)]


def stack(meta: Meta, node: Node) -> list[Node]:
    """``stack(tensors, dim)``: each with a dim of one, concatenated."""
    out = node.outputs[0]
    dim = (node.args[1] if len(node.args) > 1 else 0) % len(out.shape)
    one = (*out.shape[:dim], 1, *out.shape[dim + 1 :])
    parts = [
        simple(f"{node.name}.{at}", "aten.reshape.default", (ref, sizes(one)), one, meta(ref).dtype)
        for at, ref in enumerate(node.args[0])
    ]
    joined = tuple(Ref(part.name) for part in parts)
    return [*parts, simple(node.name, "aten.cat.default", (joined, dim), out.shape, out.dtype)]


def repeat(meta: Meta, node: Node) -> list[Node]:
    """``repeat(x, counts)``: a new dim before each repeated one, expanded and merged with it."""
    source, counts, out = node.args[0], node.args[1], node.outputs[0]
    shape = meta(source).shape
    padded: Shape = (*(1,) * (len(out.shape) - len(shape)), *shape)
    counts = (*(1,) * (len(padded) - len(counts)), *counts)
    grown = [count.expr if isinstance(count, Sym) else count for count in counts]
    return _expanded(node, source, [((1, size), (count, size)) for count, size in zip(grown, padded, strict=True)])


def repeat_interleave(meta: Meta, node: Node) -> list[Node]:
    """``repeat_interleave(x, n, dim)``: a new dim after the repeated one, expanded and merged with it."""
    source, count = node.args[:2]
    shape = meta(source).shape
    dim = node.args[2] if len(node.args) > 2 else None
    if not isinstance(count, int) or (dim is None and len(shape) != 1):
        return [node]
    at = (dim or 0) % len(shape)
    pairs = [((size,), (size,)) if axis != at else ((size, 1), (size, count)) for axis, size in enumerate(shape)]
    return _expanded(node, source, pairs)


def filled(meta: Meta, node: Node) -> list[Node]:
    """``copy(x, y)`` and ``fill(x, y)`` take x's shape and dtype only: y cast and expanded."""
    value, out = node.args[1], node.outputs[0]
    if not isinstance(value, Ref):
        args, kwargs = (sizes(out.shape), value), {"dtype": DType(out.dtype)}
        return [Node(node.name, "aten.full.default", args, kwargs, node.outputs)]
    cast = Node(
        f"{node.name}.cast",
        "aten.to.dtype",
        (value, DType(out.dtype)),
        {},
        (TensorMeta(meta(value).shape, out.dtype),),
    )
    return [cast, simple(node.name, "aten.expand.default", (Ref(cast.name), sizes(out.shape)), out.shape, out.dtype)]


def _expanded(node: Node, source: Ref, pairs: Sequence[tuple[Shape, Shape]]) -> list[Node]:
    """Reshape each dim to the first shape of its pair, expand to the second, reshape to the node's shape."""
    out = node.outputs[0]
    before: Shape = tuple(size for left, _ in pairs for size in left)
    after: Shape = tuple(size for _, right in pairs for size in right)
    names = f"{node.name}.apart", f"{node.name}.grown"
    return [
        simple(names[0], "aten.reshape.default", (source, sizes(before)), before, out.dtype),
        simple(names[1], "aten.expand.default", (Ref(names[0]), sizes(after)), after, out.dtype),
        simple(node.name, "aten.reshape.default", (Ref(names[1]), sizes(out.shape)), out.shape, out.dtype),
    ]
