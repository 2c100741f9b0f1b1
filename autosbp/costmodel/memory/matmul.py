"""Matmuls, convolutions and attention on meta tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from autosbp.costmodel.memory.autograd import MetaAutograd
from autosbp.costmodel.memory.meta_tensors import MetaTensor, Shape, broadcast, dense_strides_like
from autosbp.costmodel.memory.pointwise import binary, scalar
from autosbp.costmodel.memory.views import expand, flattened_shape, permute, reshape, transpose


def mm(
    m: MetaAutograd, out_shape: Shape, one: MetaTensor, two: MetaTensor, bias: MetaTensor | None = None
) -> MetaTensor:
    """``mm``, ``bmm``, ``addmm``.

    Each operand's gradient needs the other operand; all gradients are alive together. An expanded gradient (one number
    or row, as from a sum) is copied for each matmul of matrices.
    """
    out = m.new(out_shape, one.width)
    flows = [each is not None and each.node is not None for each in (one, two, bias)]
    wanted = [
        (each.shape, dense_strides_like(each.shape, each.strides) if len(out_shape) == 2 else None)
        for each in (one, two)
    ]
    bias_shape = () if bias is None else bias.shape
    kept = ([one] if flows[1] else []) + ([two] if flows[0] else [])

    def run(grads: list[Any], _: Sequence[Any]) -> list[MetaTensor | None]:
        found: list[MetaTensor | None] = []
        for (shape, strides), flow in zip(wanted, flows, strict=False):
            found.append(_as_transposed_view(m.new(shape, grads[0].width, strides)) if flow else None)
            if flow and len(out_shape) == 2 and _is_stretched(grads[0]):
                m.empty_like(grads[0])
        if flows[2]:
            found.append(m.new(bias_shape, grads[0].width) if bias_shape != grads[0].shape else grads[0])
        else:
            found.append(None)
        return found

    m.record([out], [one, two, bias], kept, run)
    return out


def _is_stretched(x: MetaTensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(x.strides, x.shape, strict=True))


def _as_transposed_view(gradient: MetaTensor) -> MetaTensor:
    """A gradient as torch produces it: if columns are contiguous, a view of a transposed matmul's result."""
    turned = len(gradient.shape) == 2 and gradient.strides == (1, gradient.shape[0])
    return gradient.view(gradient.shape, gradient.strides) if turned else gradient


def linear(m: MetaAutograd, x: MetaTensor, weight: MetaTensor, bias: MetaTensor | None) -> MetaTensor:
    """``[..., k] x [n, k] -> [..., n]`` as one matmul; saves a copy of ``x`` if it has no view as a matrix."""
    columns = weight.shape[0]
    rows = reshape(m, x, flattened_shape(x)) if len(x.shape) != 2 else x
    out = mm(m, (rows.shape[0], columns), rows, transpose(m, weight, 0, 1), bias)
    del rows
    return reshape(m, out, (*x.shape[:-1], columns)) if len(x.shape) != 2 else out


def matmul(m: MetaAutograd, one: MetaTensor, two: MetaTensor) -> MetaTensor:
    """``torch.matmul``: folded into one matmul if ``two`` is a matrix, else broadcast to one batched matmul."""
    if len(two.shape) == 2 and len(one.shape) >= 2:
        rows = reshape(m, one, flattened_shape(one)) if len(one.shape) > 2 else one
        out = mm(m, (rows.shape[0], two.shape[1]), rows, two)
        del rows
        return reshape(m, out, (*one.shape[:-1], two.shape[1])) if len(one.shape) > 2 else out
    lead = broadcast((one.shape[:-2], two.shape[:-2]))
    count = prod(lead)
    first = reshape(m, expand(m, one, (*lead, *one.shape[-2:])), (count, *one.shape[-2:]))
    second = reshape(m, expand(m, two, (*lead, *two.shape[-2:])), (count, *two.shape[-2:]))
    out = mm(m, (count, one.shape[-2], two.shape[-1]), first, second)
    return reshape(m, out, (*lead, one.shape[-2], two.shape[-1]))


def einsum(m: MetaAutograd, equation: str, tensors: Sequence[MetaTensor], width: int) -> MetaTensor:
    """``einsum`` of two tensors, as in torch: an elementwise product if nothing is summed, else one batched matmul."""
    left, _, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    sizes = {
        name: size
        for term, each in zip(terms, tensors, strict=True)
        for name, size in zip(term, each.shape, strict=True)
    }
    one, two = terms
    summed = [name for name in one if name in two and name not in result]
    both = [name for name in result if name in one and name in two]
    ours, theirs = ([name for name in result if name in term and name not in both] for term in terms)

    def side(x: MetaTensor, term: str, *groups: Sequence[str]) -> MetaTensor:
        names = [name for group in groups for name in group]
        return permute(m, x, [term.index(name) for name in names])

    if not summed:
        first = side(tensors[0], one, both, ours)
        second = side(tensors[1], two, both, theirs)
        shape = tuple(sizes[name] for name in both)
        first = reshape(m, first, (*shape, *(sizes[name] for name in ours), *(1,) * len(theirs)))
        second = reshape(m, second, (*shape, *(1,) * len(ours), *(sizes[name] for name in theirs)))
        out = binary(m, "aten.mul.Tensor", first, second, width)
    else:
        batch, rows, inner, columns = (prod(sizes[name] for name in group) for group in (both, ours, summed, theirs))
        first = reshape(m, side(tensors[0], one, both, ours, summed), (batch, rows, inner))
        second = reshape(m, side(tensors[1], two, both, summed, theirs), (batch, inner, columns))
        out = mm(m, (batch, rows, columns), first, second)
        out = reshape(m, out, tuple(sizes[name] for name in (*both, *ours, *theirs)))
    order = [*both, *ours, *theirs]
    return permute(m, out, [order.index(name) for name in result])


def convolution(
    m: MetaAutograd, x: MetaTensor, weight: MetaTensor, bias: MetaTensor | None, out_shape: Shape
) -> MetaTensor:
    """A convolution of any number of dims."""
    out = m.new(out_shape, x.width)
    shapes = [None if each is None or each.node is None else each.shape for each in (x, weight, bias)]

    def run(grads: list[Any], _: Sequence[Any]) -> list[MetaTensor | None]:
        return [None if shape is None else m.new(shape, grads[0].width) for shape in shapes]

    m.record([out], [x, weight, bias], [x, weight], run)
    return out


def attention(
    m: MetaAutograd, query: MetaTensor, key: MetaTensor, value: MetaTensor, mask: MetaTensor | None, *, scores: bool
) -> MetaTensor:
    """``scaled_dot_product_attention``.

    Fused kernels save a log-sum-exp per query. Unfused attention (``scores``), as on a CPU with dropout or with a mask
    that has a gradient, saves the softmax of all scores.
    """
    if mask is not None and mask.width == 1:
        mask = m.new(mask.shape, query.width)  # a boolean mask is added as minus infinities
    if scores:
        return _unfused_attention(m, query, key, value, mask)
    *lead, length, _ = query.shape
    out = _attention_output(m, query, (*lead, length, value.shape[-1]))
    rows = m.new((*lead, length), 4 if query.width < 4 else query.width)
    shapes = [each.shape for each in (query, key, value)]

    def run(grads: list[Any], _: Sequence[Any]) -> list[MetaTensor]:
        return [new_heads_inside_length(m, shape, grads[0].width) for shape in shapes]

    m.record([out], [query, key, value], [query, key, value, out, rows, *([] if mask is None else [mask])], run)
    return out


def _attention_output(m: MetaAutograd, query: MetaTensor, shape: Shape) -> MetaTensor:
    """The result: flash kernels use the memory order of the query, memory-efficient ones put heads inside of length."""
    if m.device == "cuda" and query.width >= 4:
        return new_heads_inside_length(m, shape, query.width)
    return m.new(shape, query.width, dense_strides_like(shape, query.strides))


def new_heads_inside_length(m: MetaAutograd, shape: Shape, width: int) -> MetaTensor:
    """[batch, heads, length, size] with heads inside of length in memory, as fused kernels write gradients."""
    if len(shape) != 4:
        return m.new(shape, width)
    batch, heads, length, size = shape
    return m.new(shape, width, (length * heads * size, size, heads * size, 1)) if batch else m.new(shape, width)


def _unfused_attention(
    m: MetaAutograd, query: MetaTensor, key: MetaTensor, value: MetaTensor, mask: MetaTensor | None
) -> MetaTensor:
    query = scalar(m, "aten.mul.Tensor", query, query.width)
    scores = matmul(m, query, scalar(m, "aten.mul.Tensor", transpose(m, key, -2, -1), key.width))
    if mask is not None:
        scores = binary(m, "aten.add.Tensor", scores, mask, scores.width)
    weights = softmax(m, scores, scores.width)
    del scores
    return matmul(m, weights, value)


def softmax(m: MetaAutograd, x: MetaTensor, width: int) -> MetaTensor:
    """Softmax or log-softmax; saves the result."""
    before = x.width
    out = m.new(x.shape, width)
    m.record([out], [x], [out], lambda grads, _: [m.new(grads[0].shape, before)])
    return out
