"""Products of matrices, convolutions and attention without data."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from autosbp.costmodel.memory.autograd import Machine
from autosbp.costmodel.memory.pointwise import binary, scalar
from autosbp.costmodel.memory.tensors import Shape, Tensor, broadcast, dense_like
from autosbp.costmodel.memory.views import matrix, permuted, reshaped, stretched, transposed


def product(m: Machine, out_shape: Shape, one: Tensor, two: Tensor, bias: Tensor | None = None) -> Tensor:
    """``mm``, ``bmm``, ``addmm``: each operand's gradient needs the other; all are there together. A gradient that is one
    number or row stretched, as that of a sum, is copied for each product of matrices."""
    out = m.new(out_shape, one.width)
    flows = [each is not None and each.node is not None for each in (one, two, bias)]
    wanted = [
        (each.shape, dense_like(each.shape, each.strides) if len(out_shape) == 2 else None) for each in (one, two)
    ]
    bias_shape = () if bias is None else bias.shape
    kept = ([one] if flows[1] else []) + ([two] if flows[0] else [])

    def run(grads: list[Any], _: Sequence[Any]) -> list[Tensor | None]:
        found: list[Tensor | None] = []
        for (shape, strides), flow in zip(wanted, flows, strict=False):
            found.append(_turned(m.new(shape, grads[0].width, strides)) if flow else None)
            if flow and len(out_shape) == 2 and _is_stretched(grads[0]):
                m.like(grads[0])
        if flows[2]:
            found.append(m.new(bias_shape, grads[0].width) if bias_shape != grads[0].shape else grads[0])
        else:
            found.append(None)
        return found

    m.record([out], [one, two, bias], kept, run)
    return out


def _is_stretched(x: Tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(x.strides, x.shape, strict=True))


def _turned(gradient: Tensor) -> Tensor:
    """As torch makes it: where columns are in one piece, by a transposed product, of which this is a view."""
    turned = len(gradient.shape) == 2 and gradient.strides == (1, gradient.shape[0])
    return gradient.view(gradient.shape, gradient.strides) if turned else gradient


def linear(m: Machine, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``[..., k] x [n, k] -> [..., n]`` as a product of matrices; what is kept of ``x`` is a copy where it has no view as
    one."""
    columns = weight.shape[0]
    rows = reshaped(m, x, matrix(x)) if len(x.shape) != 2 else x
    out = product(m, (rows.shape[0], columns), rows, transposed(m, weight, 0, 1), bias)
    del rows
    return reshaped(m, out, (*x.shape[:-1], columns)) if len(x.shape) != 2 else out


def matmul(m: Machine, one: Tensor, two: Tensor) -> Tensor:
    """``torch.matmul``: folded into one product of matrices where ``two`` is a matrix, else stretched to one batch."""
    if len(two.shape) == 2 and len(one.shape) >= 2:
        rows = reshaped(m, one, matrix(one)) if len(one.shape) > 2 else one
        out = product(m, (rows.shape[0], two.shape[1]), rows, two)
        del rows
        return reshaped(m, out, (*one.shape[:-1], two.shape[1])) if len(one.shape) > 2 else out
    lead = broadcast((one.shape[:-2], two.shape[:-2]))
    count = prod(lead)
    first = reshaped(m, stretched(m, one, (*lead, *one.shape[-2:])), (count, *one.shape[-2:]))
    second = reshaped(m, stretched(m, two, (*lead, *two.shape[-2:])), (count, *two.shape[-2:]))
    out = product(m, (count, one.shape[-2], two.shape[-1]), first, second)
    return reshaped(m, out, (*lead, one.shape[-2], two.shape[-1]))


def einsum(m: Machine, equation: str, tensors: Sequence[Tensor], width: int) -> Tensor:
    """Of two tensors, as torch does it: an elementwise product where nothing is summed, else one batch of products."""
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

    def side(x: Tensor, term: str, *groups: Sequence[str]) -> Tensor:
        names = [name for group in groups for name in group]
        return permuted(m, x, [term.index(name) for name in names])

    if not summed:
        first = side(tensors[0], one, both, ours)
        second = side(tensors[1], two, both, theirs)
        shape = tuple(sizes[name] for name in both)
        first = reshaped(m, first, (*shape, *(sizes[name] for name in ours), *(1,) * len(theirs)))
        second = reshaped(m, second, (*shape, *(1,) * len(ours), *(sizes[name] for name in theirs)))
        out = binary(m, "aten.mul.Tensor", first, second, width)
    else:
        batch, rows, inner, columns = (prod(sizes[name] for name in group) for group in (both, ours, summed, theirs))
        first = reshaped(m, side(tensors[0], one, both, ours, summed), (batch, rows, inner))
        second = reshaped(m, side(tensors[1], two, both, summed, theirs), (batch, inner, columns))
        out = product(m, (batch, rows, columns), first, second)
        out = reshaped(m, out, tuple(sizes[name] for name in (*both, *ours, *theirs)))
    order = [*both, *ours, *theirs]
    return permuted(m, out, [order.index(name) for name in result])


def convolution(m: Machine, x: Tensor, weight: Tensor, bias: Tensor | None, out_shape: Shape) -> Tensor:
    """A convolution of any number of dims."""
    out = m.new(out_shape, x.width)
    shapes = [None if each is None or each.node is None else each.shape for each in (x, weight, bias)]

    def run(grads: list[Any], _: Sequence[Any]) -> list[Tensor | None]:
        return [None if shape is None else m.new(shape, grads[0].width) for shape in shapes]

    m.record([out], [x, weight, bias], [x, weight], run)
    return out


def attention(m: Machine, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, scores: bool) -> Tensor:
    """``scaled_dot_product_attention``. Fused kernels keep a log-sum-exp of each query; where there is none (``scores``),
    as with dropout or with a mask that has a gradient, the softmax of all scores is kept."""
    if mask is not None and mask.width == 1:
        mask = m.new(mask.shape, query.width)  # a boolean mask is added as minus infinities
    if scores:
        return _attention_of_products(m, query, key, value, mask)
    *lead, length, _ = query.shape
    out = _attended(m, query, (*lead, length, value.shape[-1]))
    rows = m.new((*lead, length), 4 if query.width < 4 else query.width)
    shapes = [each.shape for each in (query, key, value)]

    def run(grads: list[Any], _: Sequence[Any]) -> list[Tensor]:
        return [heads_inside(m, shape, grads[0].width) for shape in shapes]

    m.record([out], [query, key, value], [query, key, value, out, rows, *([] if mask is None else [mask])], run)
    return out


def _attended(m: Machine, query: Tensor, shape: Shape) -> Tensor:
    """The result: flash kernels give it the order of memory of the query, memory-efficient ones put heads inside."""
    if m.device == "cuda" and query.width >= 4:
        return heads_inside(m, shape, query.width)
    return m.new(shape, query.width, dense_like(shape, query.strides))


def heads_inside(m: Machine, shape: Shape, width: int) -> Tensor:
    """[batch, heads, length, size] with heads inside of length in memory, as fused kernels write gradients."""
    if len(shape) != 4:
        return m.new(shape, width)
    batch, heads, length, size = shape
    return m.new(shape, width, (length * heads * size, size, heads * size, 1)) if batch else m.new(shape, width)


def _attention_of_products(m: Machine, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    query = scalar(m, "aten.mul.Tensor", query, query.width)
    scores = matmul(m, query, scalar(m, "aten.mul.Tensor", transposed(m, key, -2, -1), key.width))
    if mask is not None:
        scores = binary(m, "aten.add.Tensor", scores, mask, scores.width)
    weights = softmax(m, scores, scores.width)
    del scores
    return matmul(m, weights, value)


def softmax(m: Machine, x: Tensor, width: int) -> Tensor:
    """Softmax or its logarithm: the result is kept."""
    before = x.width
    out = m.new(x.shape, width)
    m.record([out], [x], [out], lambda grads, _: [m.new(grads[0].shape, before)])
    return out
