"""Output shapes of ops whose attributes determine them, such as a convolution's stride, without torch.

An op's factors (``autosbp.sbp.rules``) relate the sizes that its tensors share; the other sizes are checked here. A
document's attributes are untrusted: a wrong one raises ``TypeError``, ``ValueError``, ``IndexError`` or a similar
error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autosbp.errors import GraphError
from autosbp.graph.ir import Node, TensorMeta

Shape = tuple[int, ...]
_Formula = Callable[[Node, Sequence[TensorMeta]], Shape]


def check_shape(node: Node, metas: Sequence[TensorMeta]) -> None:
    """Raise ``GraphError`` if the output's shape contradicts the op's attributes; ``metas`` are its tensor inputs."""
    expected = infer_shape(node, metas)
    if expected is not None and node.outputs[0].sizes != expected:
        field = f"{node.name}.outputs[0].shape"
        raise GraphError(field, list(node.outputs[0].sizes), f"{node.op} expects {list(expected)}")


def infer_shape(node: Node, metas: Sequence[TensorMeta]) -> Shape | None:
    """The shape of the first output, from the attributes and the tensor inputs.

    None for ops whose factors determine their output shape.
    """
    formula = _FORMULAS.get(node.op)
    return None if formula is None else formula(node, metas)


def _arg(node: Node, position: int, default: Any) -> Any:
    given = node.args[position] if len(node.args) > position else None
    return default if given is None else given


def _dim(dim: int, ndim: int) -> int:
    if not -ndim <= dim < ndim:
        raise ValueError(f"dim {dim} of a tensor with {ndim} dims")
    return dim % ndim


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, tuple):
        return (value[0], value[0]) if len(value) == 1 else (int(value[0]), int(value[1]))
    return int(value), int(value)


def _window(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool = False) -> int:
    """Formula of torch.nn.Conv2d and MaxPool2d; the last window may not start in the padding."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    if not ceil:
        return span // stride + 1
    count = -(-span // stride) + 1
    return count - 1 if (count - 1) * stride >= size + padding else count


def _conv2d(node: Node, metas: Sequence[TensorMeta]) -> Shape:
    source, weight = metas[0].sizes, metas[1].sizes
    stride, dilation = _pair(_arg(node, 3, 1)), _pair(_arg(node, 5, 1))
    groups = _arg(node, 6, 1)
    if source[1] != weight[1] * groups:
        raise ValueError(f"{source[1]} input channels do not match a weight of {weight[1]} channels in {groups} groups")
    padding = _arg(node, 4, 0)
    if padding == "same":
        return (source[0], weight[0], *source[2:])
    pads = (0, 0) if padding == "valid" else _pair(padding)
    space = (_window(source[2 + at], weight[2 + at], stride[at], pads[at], dilation[at]) for at in range(2))
    return (source[0], weight[0], *space)


def _pool2d(node: Node, metas: Sequence[TensorMeta]) -> Shape:
    """``max_pool2d(x, kernel, stride, padding, dilation, ceil)``; ``avg_pool2d`` has no dilation."""
    sizes = metas[0].sizes
    kernel = _pair(_arg(node, 1, None))
    stride = _pair(_arg(node, 2, None) or kernel)
    padding = _pair(_arg(node, 3, 0))
    has_dilation = node.op == "aten.max_pool2d.default"
    dilation = _pair(_arg(node, 4, 1)) if has_dilation else (1, 1)
    ceil = bool(_arg(node, 5 if has_dilation else 4, False))
    space = (_window(sizes[at - 2], kernel[at], stride[at], padding[at], dilation[at], ceil) for at in range(2))
    return (*sizes[:-2], *space)


def _adaptive_pool2d(node: Node, metas: Sequence[TensorMeta]) -> Shape:
    return (*metas[0].sizes[:-2], *_pair(_arg(node, 1, None)))


def _slice(node: Node, metas: Sequence[TensorMeta]) -> Shape:
    sizes = list(metas[0].sizes)
    dim = _dim(_arg(node, 1, 0), len(sizes))
    sizes[dim] = len(range(sizes[dim])[slice(_arg(node, 2, None), _arg(node, 3, None), _arg(node, 4, 1))])
    return tuple(sizes)


def _cat(node: Node, metas: Sequence[TensorMeta]) -> Shape:
    sizes = list(metas[0].sizes)
    dim = _dim(_arg(node, 1, 0), len(sizes))
    sizes[dim] = sum(meta.sizes[dim] for meta in metas)
    return tuple(sizes)


def _pad(node: Node, metas: Sequence[TensorMeta]) -> Shape:
    sizes = list(metas[0].sizes)
    for at, width in enumerate(node.args[1]):
        sizes[len(sizes) - 1 - at // 2] += width
    return tuple(sizes)


def _sum(node: Node, metas: Sequence[TensorMeta]) -> Shape:
    sizes = metas[0].sizes
    dims = _arg(node, 1, ())
    reduced = {_dim(dim, len(sizes)) for dim in ((dims,) if isinstance(dims, int) else dims or range(len(sizes)))}
    keep = bool(_arg(node, 2, False))
    return tuple(1 if dim in reduced else size for dim, size in enumerate(sizes) if keep or dim not in reduced)


def _product(_node: Node, metas: Sequence[TensorMeta]) -> Shape:
    """Matrix products with broadcast leading dims."""
    left, right = metas[-2].sizes, metas[-1].sizes
    ndim = max(len(left), len(right)) - 2
    leads = [(1,) * (ndim + 2 - len(sizes)) + sizes[:-2] for sizes in (left, right)]
    return (*map(max, zip(*leads, strict=True)), left[-2], right[-1])


def _linear(_node: Node, metas: Sequence[TensorMeta]) -> Shape:
    return (*metas[0].sizes[:-1], metas[1].sizes[0])


def _attention(_node: Node, metas: Sequence[TensorMeta]) -> Shape:
    return (*metas[0].sizes[:-1], metas[2].sizes[-1])


def _embedding(_node: Node, metas: Sequence[TensorMeta]) -> Shape:
    return (*metas[1].sizes, metas[0].sizes[1])


def _index(_node: Node, metas: Sequence[TensorMeta]) -> Shape:
    return metas[1].sizes


def _permute(node: Node, metas: Sequence[TensorMeta]) -> Shape:
    return tuple(metas[0].sizes[dim] for dim in node.args[1])


def _argument_shape(node: Node, _metas: Sequence[TensorMeta]) -> Shape:
    """Reshape and expand: the argument is the whole output shape."""
    return tuple(node.args[1])


def _same(_node: Node, metas: Sequence[TensorMeta]) -> Shape:
    return metas[0].sizes


_FORMULAS: Mapping[str, _Formula] = {
    "aten.linear.default": _linear,
    "aten.mm.default": _product,
    "aten.bmm.default": _product,
    "aten.addmm.default": _product,
    "aten.matmul.default": _product,
    "aten.scaled_dot_product_attention.default": _attention,
    "aten.embedding.default": _embedding,
    "aten.gather.default": _index,
    "aten.permute.default": _permute,
    "aten.conv2d.default": _conv2d,
    "aten.conv2d.padding": _conv2d,
    "aten.max_pool2d.default": _pool2d,
    "aten.avg_pool2d.default": _pool2d,
    "aten.adaptive_avg_pool2d.default": _adaptive_pool2d,
    "aten.slice.Tensor": _slice,
    "aten.cat.default": _cat,
    "aten.constant_pad_nd.default": _pad,
    "aten.sum.dim_IntList": _sum,
    "aten.sum.default": _sum,
    "aten.amax.default": _sum,
    "aten.amin.default": _sum,
    "aten.max.default": _sum,
    "aten.min.default": _sum,
    "aten.max.dim": _sum,
    "aten.min.dim": _sum,
    "aten.logsumexp.default": _sum,
    "aten.reshape.default": _argument_shape,
    "aten.expand.default": _argument_shape,
    "aten.softmax.int": _same,
    "aten.log_softmax.int": _same,
    "aten.layer_norm.default": _same,
    "aten.rms_norm.default": _same,
    "aten.group_norm.default": _same,
    "aten.batch_norm.default": _same,
    "aten.to.dtype": _same,
}
