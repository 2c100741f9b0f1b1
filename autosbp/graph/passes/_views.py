"""Shape ops in four canonical forms: reshape with the whole output shape, permute, expand, slice; casts as ``to.dtype``."""

from __future__ import annotations

from dataclasses import replace

from autosbp.errors import UnsupportedError
from autosbp.graph.ir import Arg, DType, LogicalGraph, Node, Ref, Sym, TensorMeta
from autosbp.graph.passes._edit import rebuild
from autosbp.graph.passes._pieces import filled, repeat, repeat_interleave, select, stack, unbound

_RESHAPES = frozenset(
    f"aten.{name}"
    for name in [
        "view.default",
        "_unsafe_view.default",
        "reshape.default",
        "flatten.using_ints",
        "unflatten.int",
        "squeeze.dim",
        "squeeze.dims",
        "squeeze.default",
        "unsqueeze.default",
        "view_as.default",
    ]
)
_SPLITS = frozenset(
    f"aten.{name}"
    for name in (
        "split.Tensor", "split.sizes", "split_with_sizes.default", "unsafe_split.Tensor", "chunk.default",
        "unsafe_chunk.default", "tensor_split.sections", "tensor_split.indices",
    )
)  # fmt: skip
_PERMUTES = frozenset(
    f"aten.{name}"
    for name in (
        "t.default", "transpose.int", "swapaxes.default", "swapdims.default", "permute.default", "numpy_T.default",
        "mT.default", "adjoint.default", "movedim.int", "movedim.intlist", "moveaxis.int", "moveaxis.intlist",
    )
)  # fmt: skip
_CASTS = frozenset(
    f"aten.{name}"
    for name in [
        "to.dtype",
        "to.dtype_layout",
        "_to_copy.default",
        "to.device",
        "type_as.default",
        "to.other",
        "float.default",
    ]
)


_EXPANDED = {
    "aten.select.int": select,
    "aten.stack.default": stack,
    "aten.repeat.default": repeat,
    "aten.tile.default": repeat,
    "aten.repeat_interleave.self_int": repeat_interleave,
    "aten.copy.default": filled,
    "aten.fill.Tensor": filled,
    "aten.fill.Scalar": filled,
}
"""Ops that become several; the last has the op's own name."""


def canonical_views(graph: LogicalGraph) -> LogicalGraph:
    """Rewrite every view-like op; split and chunk become slices."""
    nodes: list[Node] = []
    pieces: dict[Ref, Ref] = {}
    made: dict[str, Node] = {}

    def meta(ref: Ref) -> TensorMeta:
        return made[ref.name].outputs[ref.index] if ref.name in made else graph.meta(ref)

    for node in graph.nodes:
        begun = len(nodes)
        node = node.map_args(lambda arg: pieces.get(arg, arg) if isinstance(arg, Ref) else arg)
        if node.op in _SPLITS:
            nodes.extend(_slices(node, pieces))
        elif node.op == "aten.unbind.int":
            nodes.extend(unbound(meta, node, pieces))
        elif node.op in _EXPANDED:
            nodes.extend(_EXPANDED[node.op](meta, node))
        else:
            nodes.append(_canonical(node))
        made.update((each.name, each) for each in nodes[begun:])
    return rebuild(replace(graph, nodes=tuple(nodes)), nodes, pieces)


def _sizes(meta: TensorMeta) -> tuple[Arg, ...]:
    return tuple(dim if isinstance(dim, int) else Sym(dim) for dim in meta.shape)


def _canonical(node: Node) -> Node:
    source = node.args[0] if node.args else None
    if node.op in _RESHAPES:
        return replace(node, op="aten.reshape.default", args=(source, _sizes(node.outputs[0])), kwargs={})
    if node.op in ("aten.expand.default", "aten.expand_as.default", "aten.broadcast_to.default"):
        return replace(node, op="aten.expand.default", args=(source, _sizes(node.outputs[0])), kwargs={})
    if node.op in _CASTS:
        return replace(node, op="aten.to.dtype", args=(source, DType(node.outputs[0].dtype)), kwargs={})
    if node.op in _PERMUTES:
        return replace(node, op="aten.permute.default", args=(source, _order(node)), kwargs={})
    if node.op == "aten.slice.Tensor":
        return _clamped(node)
    if node.op == "aten.narrow.default":
        dim, start, length = node.args[1:4]
        stop = start + length if isinstance(start, int) and isinstance(length, int) else None
        if stop is not None and start >= 0:
            return replace(node, op="aten.slice.Tensor", args=(source, dim, start, stop, 1))
    if node.op == "aten.pad.default" and (len(node.args) < 3 or node.args[2] == "constant"):
        value = node.args[3] if len(node.args) > 3 and node.args[3] is not None else 0
        return replace(node, op="aten.constant_pad_nd.default", args=(source, node.args[1], value), kwargs={})
    return node


def _order(node: Node) -> tuple[int, ...]:
    ndim = len(node.outputs[0].shape)
    order = list(range(ndim))
    if node.op == "aten.permute.default":
        return tuple(dim % ndim for dim in node.args[1])
    if node.op.split(".")[1] in ("transpose", "swapaxes", "swapdims"):
        one, two = node.args[1] % ndim, node.args[2] % ndim
        order[one], order[two] = order[two], order[one]
        return tuple(order)
    if node.op.split(".")[1] in ("movedim", "moveaxis"):
        sources, targets = (
            tuple(dim % ndim for dim in (arg if isinstance(arg, tuple) else (arg,))) for arg in node.args[1:3]
        )
        kept = iter(dim for dim in order if dim not in sources)
        placed = dict(zip(targets, sources, strict=True))
        return tuple(placed[at] if at in placed else next(kept) for at in range(ndim))
    if node.op.split(".")[1] in ("mT", "adjoint"):
        return (*order[:-2], order[-1], order[-2])
    return tuple(reversed(order))


def _clamped(node: Node) -> Node:
    """A slice with its defaults written out and an end that is None where it is beyond any size."""
    args = [*node.args, *(None, 0, None, None, 1)[len(node.args) :]]
    args[1] = 0 if args[1] is None else args[1]
    args[2] = 0 if args[2] is None else args[2]
    args[3] = None if isinstance(args[3], int) and args[3] >= 2**62 else args[3]
    return replace(node, args=tuple(args))


def _slices(node: Node, pieces: dict[Ref, Ref]) -> list[Node]:
    source = node.args[0]
    ndim = len(node.outputs[0].shape)
    dim = (node.args[2] if len(node.args) > 2 else 0) % ndim
    start = 0
    nodes = []
    for index, meta in enumerate(node.outputs):
        size = meta.shape[dim]
        if not isinstance(size, int):
            raise UnsupportedError(f"{node.name}: {node.op} along the batch; split a dim of fixed size")
        name = f"{node.name}.{index}"
        nodes.append(Node(name, "aten.slice.Tensor", (source, dim, start, start + size, 1), {}, (meta,)))
        pieces[Ref(node.name, index)] = Ref(name)
        start += size
    return nodes
