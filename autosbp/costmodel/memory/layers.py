"""Norms, pooling, lookups, sorting and experts without data."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from autosbp.costmodel.memory.autograd import Machine
from autosbp.costmodel.memory.pointwise import UNARY, binary, unary
from autosbp.costmodel.memory.products import product
from autosbp.costmodel.memory.tensors import Shape, Tensor, contiguous
from autosbp.costmodel.memory.views import joined, plain_reshape, transposed


def norm(
    m: Machine,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Shape,
    count: int,
    width: int,
    *,
    keeps_bias: bool = False,
) -> Tensor:
    """Layer, group, batch and RMS norm: the input, ``count`` statistics of ``width`` bytes each and the weight are kept;
    of a layer norm, the bias too."""
    out = m.like(x)
    kept = [x, *(m.new(statistics, width) for _ in range(count))]
    kept += [each for each in (weight, bias if keeps_bias else None) if each is not None]
    shapes = [None if each is None or each.node is None else each.shape for each in (x, weight, bias)]

    def run(grads: list[Any], _: Sequence[Any]) -> list[Tensor | None]:
        return [None if shape is None else m.new(shape, grads[0].width) for shape in shapes]

    m.record([out], [x, weight, bias], kept, run)
    return out


def pooled(m: Machine, x: Tensor, shape: Shape, *, indices: bool) -> Tensor:
    """Pooling; a maximum keeps where each came from."""
    out, before = m.new(shape, x.width), x.shape
    kept = [x, m.new(shape, 8)] if indices else [x]
    m.record([out], [x], kept, lambda grads, _: [m.new(before, grads[0].width)])
    return out


def embedding(m: Machine, weight: Tensor, ids: Tensor) -> Tensor:
    """Rows of a table."""
    out, table = m.new((*ids.shape, weight.shape[1]), weight.width), weight.shape
    m.record([out], [weight], [ids], lambda grads, _: [m.new(table, grads[0].width)])
    return out


def taken(m: Machine, x: Tensor, index: Tensor, shape: Shape) -> Tensor:
    """``gather`` and ``index_select``: the gradient is scattered out of place into zeros."""
    out, before = m.new(shape, x.width), x.shape

    def run(grads: list[Any], _: Sequence[Any]) -> list[Tensor]:
        zeros = m.new(before, grads[0].width)
        found = [m.like(zeros)]
        del zeros
        return found

    m.record([out], [x], [index], run)
    return out


def scattered(m: Machine, x: Tensor, index: Tensor, source: Tensor, *, keeps_source: bool = False) -> Tensor:
    """``scatter_add``, and ``index_add``, which keeps what it adds: its gradient is gathered."""
    out, size, flows = m.like(x), source.shape, (x.node is not None, source.node is not None)

    def run(grads: list[Any], _: Sequence[Any]) -> list[Tensor | None]:
        return [grads[0] if flows[0] else None, m.new(size, grads[0].width) if flows[1] else None]

    m.record([out], [x, source], [index, source] if keeps_source else [index], run)
    return out


def largest(m: Machine, x: Tensor, shape: Shape) -> list[Tensor]:
    """``topk``, and ``max`` with indices."""
    values, places, before = m.new(shape, x.width), m.new(shape, 8), x.shape

    def run(grads: list[Any], _: Sequence[Any]) -> list[Tensor]:
        zeros = m.new(before, grads[0].width)
        found = [m.like(zeros)]
        del zeros
        return found

    m.record([values], [x], [places], run)
    return [values, places]


def experts(
    m: Machine, x: Tensor, index: Tensor, weight: Tensor, stacks: Sequence[Tensor], activation: str, share: float
) -> Tensor:
    """A mixture of experts that share ``share`` of all slots evenly (``graph.own_ops.experts``)."""
    count, slots = stacks[0].shape[0], round(prod(index.shape) * share)
    rows = [slots * (at + 1) // count - slots * at // count for at in range(count)]
    order = m.new((prod(index.shape),), 8)
    tokens = m.new((slots,), 8)
    chosen_rows = taken(m, x, tokens, (slots, x.shape[1]))
    parts = _split(m, chosen_rows, rows)
    del chosen_rows
    layers = [unbound(m, stack) for stack in stacks]
    kind = UNARY[f"aten.{activation.removesuffix('_tanh')}.default"]
    pieces = []
    for part, gate, up, down in zip(parts, *layers, strict=True):
        held = unary(m, _linear(m, part, gate), kind)
        hidden = binary(m, "aten.mul.Tensor", held, _linear(m, part, up), x.width)
        pieces.append(_linear(m, hidden, down))
    together = joined(m, pieces, (slots, x.shape[1]), x.width)
    weights = taken(m, _flat(m, weight), order, (slots,))
    column = weights.view((slots, 1), (1, 1))
    column.node, column.index = weights.node, weights.index
    scaled = binary(m, "aten.mul.Tensor", together, column, x.width)
    zeros = m.new(x.shape, x.width)
    return scattered(m, zeros, tokens, scaled, keeps_source=True)


def _linear(m: Machine, x: Tensor, weight: Tensor) -> Tensor:
    return product(m, (x.shape[0], weight.shape[0]), x, transposed(m, weight, 0, 1))


def _flat(m: Machine, x: Tensor) -> Tensor:
    before = x.shape
    out = plain_reshape(m, x, (prod(x.shape),))
    m.record([out], [x], [], lambda grads, _: [grads[0].view(before, contiguous(before))])
    return out


def _split(m: Machine, x: Tensor, rows: Sequence[int]) -> list[Tensor]:
    """``split``: the parts' gradients are joined."""
    return parts(m, x, [(count, *x.shape[1:]) for count in rows], x.strides)


def unbound(m: Machine, stack: Tensor) -> list[Tensor]:
    """``unbind``: the parts' gradients are stacked."""
    return parts(m, stack, [stack.shape[1:]] * stack.shape[0], stack.strides[1:])


def parts(m: Machine, whole: Tensor, shapes: Sequence[Shape], strides: Shape) -> list[Tensor]:
    before, width = whole.shape, whole.width
    outs = [whole.view(shape, strides) for shape in shapes]
    m.record(outs, [whole], [], lambda _, __: [m.new(before, width)])
    return outs
