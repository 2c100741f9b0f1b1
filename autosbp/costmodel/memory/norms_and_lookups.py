"""Norms, pooling, lookups, sorting and experts on meta tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from autosbp.costmodel.memory.autograd import MetaAutograd
from autosbp.costmodel.memory.matmul import mm
from autosbp.costmodel.memory.meta_tensors import MetaTensor, Shape, contiguous
from autosbp.costmodel.memory.pointwise import UNARY, binary, cast, unary
from autosbp.costmodel.memory.views import cat, plain_reshape, transpose

_FULL_BYTES = 4
"""Bytes per element that statistics of half-precision values are taken with."""


def norm(
    m: MetaAutograd,
    x: MetaTensor,
    weight: MetaTensor | None,
    bias: MetaTensor | None,
    statistics: Shape,
    count: int,
    width: int,
    *,
    keeps_bias: bool = False,
) -> MetaTensor:
    """Layer, group, batch and RMS norm.

    Saves the input, ``count`` statistics of ``width`` bytes per element, and the weight; a layer norm (``keeps_bias``)
    also saves the bias.
    """
    out = m.empty_like(x)
    kept = [x, *(m.new(statistics, width) for _ in range(count))]
    kept += [each for each in (weight, bias if keeps_bias else None) if each is not None]
    shapes = [None if each is None or each.node is None else each.shape for each in (x, weight, bias)]

    def run(grads: list[Any], _: Sequence[Any]) -> list[MetaTensor | None]:
        return [None if shape is None else m.new(shape, grads[0].width) for shape in shapes]

    m.record([out], [x, weight, bias], kept, run)
    return out


def rms_norm_of_ops(m: MetaAutograd, x: MetaTensor, weight: MetaTensor | None, statistics: Shape) -> MetaTensor:
    """RMS norm where torch has no kernel for it: in float32, from a square, a mean and products."""
    full = x if x.width >= _FULL_BYTES else cast(m, x, _FULL_BYTES)
    square = m.empty_like(full)
    del square
    rows = m.new(statistics, full.width)
    out = m.empty_like(full)

    def run(grads: list[Any], _: Sequence[Any]) -> list[MetaTensor]:
        first = m.empty_like(grads[0])  # by way of the product
        between = m.empty_like(grads[0])  # by way of the square
        found = m.empty_like(between)
        del first, between
        return [found]

    m.record([out], [full], [full, rows], run)
    normed = out if x.width >= _FULL_BYTES else cast(m, out, x.width)
    return normed if weight is None else binary(m, "aten.mul.Tensor", normed, weight, x.width)


def pool(m: MetaAutograd, x: MetaTensor, shape: Shape, *, indices: bool) -> MetaTensor:
    """Pooling; max pooling saves the indices."""
    out, before = m.new(shape, x.width), x.shape
    kept = [x, m.new(shape, 8)] if indices else [x]
    m.record([out], [x], kept, lambda grads, _: [m.new(before, grads[0].width)])
    return out


def embedding(m: MetaAutograd, weight: MetaTensor, ids: MetaTensor) -> MetaTensor:
    """Rows of a table."""
    out, table = m.new((*ids.shape, weight.shape[1]), weight.width), weight.shape
    m.record([out], [weight], [ids], lambda grads, _: [m.new(table, grads[0].width)])
    return out


def pool_with_indices(m: MetaAutograd, x: MetaTensor, shape: Shape) -> list[MetaTensor]:
    """Max pooling that also returns the indices, which it saves."""
    values, places, before = m.new(shape, x.width), m.new(shape, 8), x.shape
    m.record([values], [x], [x, places], lambda grads, _: [m.new(before, grads[0].width)])
    return [values, places]


def gather(m: MetaAutograd, x: MetaTensor, kept: Sequence[MetaTensor], shape: Shape) -> MetaTensor:
    """``gather``, ``index_select`` and indexing by tensors: the gradient is scattered out of place into zeros."""
    out, before = m.new(shape, x.width), x.shape

    def run(grads: list[Any], _: Sequence[Any]) -> list[MetaTensor]:
        zeros = m.new(before, grads[0].width)
        found = [m.empty_like(zeros)]
        del zeros
        return found

    m.record([out], [x], kept, run)
    return out


def index_put(m: MetaAutograd, x: MetaTensor, indices: Sequence[MetaTensor], values: MetaTensor) -> MetaTensor:
    """Values put into a copy."""
    out, shapes, flows = m.empty_like(x), (x.shape, values.shape), (x.node is not None, values.node is not None)

    def run(grads: list[Any], _: Sequence[Any]) -> list[MetaTensor | None]:
        return [m.new(shape, grads[0].width) if wanted else None for shape, wanted in zip(shapes, flows, strict=True)]

    m.record([out], [x, values], indices, run)
    return out


def scatter_add(
    m: MetaAutograd, x: MetaTensor, index: MetaTensor, source: MetaTensor, *, keeps_source: bool = False
) -> MetaTensor:
    """``scatter_add``, and ``index_add``, which saves what it adds; the gradient is gathered."""
    out, size, flows = m.empty_like(x), source.shape, (x.node is not None, source.node is not None)

    def run(grads: list[Any], _: Sequence[Any]) -> list[MetaTensor | None]:
        return [grads[0] if flows[0] else None, m.new(size, grads[0].width) if flows[1] else None]

    m.record([out], [x, source], [index, source] if keeps_source else [index], run)
    return out


def topk(m: MetaAutograd, x: MetaTensor, shape: Shape) -> list[MetaTensor]:
    """``topk``, and ``max`` with indices."""
    values, places, before = m.new(shape, x.width), m.new(shape, 8), x.shape

    def run(grads: list[Any], _: Sequence[Any]) -> list[MetaTensor]:
        zeros = m.new(before, grads[0].width)
        found = [m.empty_like(zeros)]
        del zeros
        return found

    m.record([values], [x], [places], run)
    return [values, places]


def deviation(m: MetaAutograd, x: MetaTensor, shape: Shape, *, keeps_output: bool) -> MetaTensor:
    """Variance, and standard deviation (``keeps_output``), whose backward takes the input less its mean."""
    out, before = m.new(shape, x.width), x.shape

    def run(grads: list[Any], _: Sequence[Any]) -> list[MetaTensor]:
        scaled = [m.new(shape, grads[0].width) for _ in range(1 + keeps_output)]
        mean = m.new(shape, grads[0].width)
        difference = m.new(before, grads[0].width)
        found = m.new(before, grads[0].width)
        del scaled, mean, difference
        return [found]

    m.record([out], [x], [x, out] if keeps_output else [x], run)
    return out


def experts(
    m: MetaAutograd,
    x: MetaTensor,
    index: MetaTensor,
    weight: MetaTensor,
    stacks: Sequence[MetaTensor],
    activation: str,
    share: float,
) -> MetaTensor:
    """A mixture of experts that processes the fraction ``share`` of all slots, evenly (``graph.experts_op.experts``)."""
    count, slots = stacks[0].shape[0], round(prod(index.shape) * share)
    rows = [slots * (at + 1) // count - slots * at // count for at in range(count)]
    order = m.new((prod(index.shape),), 8)
    tokens = m.new((slots,), 8)
    chosen_rows = gather(m, x, [tokens], (slots, x.shape[1]))
    parts = _split(m, chosen_rows, rows)
    del chosen_rows
    layers = [unbind(m, stack) for stack in stacks]
    kind = UNARY[f"aten.{activation.removesuffix('_tanh')}.default"]
    pieces = []
    for part, gate, up, down in zip(parts, *layers, strict=True):
        held = unary(m, _linear(m, part, gate), kind)
        hidden = binary(m, "aten.mul.Tensor", held, _linear(m, part, up), x.width)
        pieces.append(_linear(m, hidden, down))
    together = cat(m, pieces, (slots, x.shape[1]), x.width)
    weights = gather(m, _flat(m, weight), [order], (slots,))
    column = weights.view((slots, 1), (1, 1))
    column.node, column.index = weights.node, weights.index
    scaled = binary(m, "aten.mul.Tensor", together, column, x.width)
    zeros = m.new(x.shape, x.width)
    return scatter_add(m, zeros, tokens, scaled, keeps_source=True)


def _linear(m: MetaAutograd, x: MetaTensor, weight: MetaTensor) -> MetaTensor:
    return mm(m, (x.shape[0], weight.shape[0]), x, transpose(m, weight, 0, 1))


def _flat(m: MetaAutograd, x: MetaTensor) -> MetaTensor:
    before = x.shape
    out = plain_reshape(m, x, (prod(x.shape),))
    m.record([out], [x], [], lambda grads, _: [grads[0].view(before, contiguous(before))])
    return out


def _split(m: MetaAutograd, x: MetaTensor, rows: Sequence[int]) -> list[MetaTensor]:
    """``split``: the gradients of the parts are concatenated."""
    return split_views(m, x, [(count, *x.shape[1:]) for count in rows], x.strides)


def unbind(m: MetaAutograd, stack: MetaTensor) -> list[MetaTensor]:
    """``unbind``: the gradients of the parts are stacked."""
    return split_views(m, stack, [stack.shape[1:]] * stack.shape[0], stack.strides[1:])


def split_views(m: MetaAutograd, whole: MetaTensor, shapes: Sequence[Shape], strides: Shape) -> list[MetaTensor]:
    before, width = whole.shape, whole.width
    outs = [whole.view(shape, strides) for shape in shapes]
    m.record(outs, [whole], [], lambda _, __: [m.new(before, width)])
    return outs
