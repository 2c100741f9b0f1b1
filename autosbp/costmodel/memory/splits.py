"""Split implementations without data: what ``executor.split_ops`` keeps, and what it makes on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from autosbp.costmodel.memory import layers
from autosbp.costmodel.memory.autograd import Machine
from autosbp.costmodel.memory.ops import Call, run_op
from autosbp.costmodel.memory.pointwise import chosen
from autosbp.costmodel.memory.products import heads_inside
from autosbp.costmodel.memory.tensors import Shape, Tensor
from autosbp.sbp.mesh import Mesh


@dataclass(frozen=True, slots=True)
class Way:
    """How one implementation works through a tensor ``x``: full-size tensors that live beside the result at the fullest
    moment forward, and beside the gradients backward."""

    forward: int
    backward: int


NORM, SCALED_NORM = Way(1, 1), Way(1, 2)
"""Where a weight varies along what is normalised, the gradient times it is one more."""
SOFTMAX, LOG_SOFTMAX, EXTREMUM, LOGSUMEXP = Way(0, 2), Way(0, 1), Way(1, 2), Way(1, 1)


def run_split(call: Call, axes: Mapping[str, tuple[int, ...]], mesh: Mesh) -> list[Tensor]:
    """The outputs of an op whose whole dim is split on ``axes``, by factor."""
    handler = _HANDLERS.get(call.node.op)
    if call.node.op == "autosbp.experts.default":
        ranks = mesh.group_size([axis for each in axes.values() for axis in each])
        return run_op(replace(call, expert_share=1 / ranks))
    if call.node.op == "aten.group_norm.default" and set(axes) == {"g"}:
        return run_op(call)
    return run_op(call) if handler is None else handler(call)


def _worked(
    m: Machine, outs: list[Tensor], ins: Sequence[Tensor | None], kept: Sequence[Tensor], full: Shape, way: Way
) -> list[Tensor]:
    """Record an implementation with tensors of shape ``full`` on the way."""
    width = outs[0].width
    between = [m.new(full, width) for _ in range(way.forward)]
    del between
    shapes = [None if each is None or each.node is None else each.shape for each in ins]

    def run(grads: list[Any], _: Sequence[Any]) -> list[Tensor | None]:
        between = [m.new(full, width) for _ in range(way.backward)]
        found = [None if shape is None else m.new(shape, grads[0].width) for shape in shapes]
        del between
        return found

    m.record(outs[:1], ins, kept, run)
    return outs


def _norm(call: Call) -> list[Tensor]:
    m, x = call.m, call.ins[0]
    at = 1 if "batch_norm" in call.node.op else 2
    weight, bias = call.tensor(at), call.tensor(at + 1)
    rms = "rms_norm" in call.node.op
    rows = [m.new(_rows(call), max(4, x.width)) for _ in range(1 if rms else 2)]
    out = m.like(x)
    kept = [x, *rows, *([] if weight is None else [weight])]
    scaled = weight is not None and at == 2
    return _worked(m, [out], [x, weight, bias], kept, x.shape, SCALED_NORM if scaled else NORM)


def _rows(call: Call) -> Shape:
    """One number for what is normalised together."""
    x = call.ins[0]
    if "batch_norm" in call.node.op:
        return (x.shape[1],)
    if "group_norm" in call.node.op:
        return (x.shape[0], min(call.argument(1), x.shape[1]))
    return x.shape[: len(x.shape) - len(call.argument(1))]


def _softmax(call: Call) -> list[Tensor]:
    out = call.m.new(call.shape, call.width)
    way = LOG_SOFTMAX if "log_softmax" in call.node.op else SOFTMAX
    return _worked(call.m, [out], [call.ins[0]], [out], call.shape, way)


def _reduced(call: Call) -> list[Tensor]:
    m, x = call.m, call.ins[0]
    outs = [m.new(shape, width) for shape, width in zip(call.shapes, call.widths, strict=True)]
    if len(outs) == 2:
        return _worked(m, outs, [x], outs[1:], x.shape, Way(0, 0))
    lse = "logsumexp" in call.node.op
    return _worked(m, outs, [x], [x, outs[0]], x.shape, LOGSUMEXP if lse else EXTREMUM)


def _embedding(call: Call) -> list[Tensor]:
    m, (weight, ids) = call.m, call.ins[:2]
    local, outside = m.like(ids), m.new((*ids.shape, 1), 1)
    inside = m.like(local)
    rows = layers.embedding(m, weight, inside)
    return [chosen(m, outside, rows, None, call.width)]


def _gather(call: Call) -> list[Tensor]:
    m, (x, index) = call.m, call.ins[:2]
    local, outside = m.like(index), m.new(index.shape, 1)
    inside = m.like(local)
    return [chosen(m, outside, layers.taken(m, x, inside, call.shape), None, call.width)]


def _scatter_add(call: Call) -> list[Tensor]:
    m, (x, index, source) = call.m, call.ins[:3]
    local, outside = m.like(index), m.new(index.shape, 1)
    added = chosen(m, outside, source, None, call.width)
    return [layers.scattered(m, x, m.like(local), added)]


def _attention(call: Call) -> list[Tensor]:
    m, (query, key, value) = call.m, call.ins[:3]
    mask = call.tensor(3)
    if mask is not None and mask.width == 1:
        mask = m.new(mask.shape, query.width)
    total = m.new(query.shape[:-1], max(4, query.width))
    out = m.new((*query.shape[:-1], value.shape[-1]), query.width)
    between = heads_inside(m, out.shape, out.width)
    del between
    shapes = [query.shape, key.shape, value.shape]
    product, full = prod(query.shape[:-1]), query.shape

    def run(grads: list[Any], _: Sequence[Any]) -> list[Tensor]:
        between = [m.new((product,), grads[0].width), m.new(full, grads[0].width), m.new(full, grads[0].width)]
        found = [heads_inside(m, shape, grads[0].width) for shape in shapes]
        del between
        return found

    m.record([out], [query, key, value], [query, key, value, out, total, *([] if mask is None else [mask])], run)
    return [out]


_HANDLERS: Mapping[str, Callable[[Call], list[Tensor]]] = {
    **dict.fromkeys(("aten.layer_norm.default", "aten.rms_norm.default"), _norm),
    **dict.fromkeys(("aten.batch_norm.default", "aten.group_norm.default"), _norm),
    **dict.fromkeys(("aten.softmax.int", "aten.log_softmax.int"), _softmax),
    **dict.fromkeys(
        (f"aten.{name}" for name in ("amax.default", "amin.default", "max.default", "min.default")), _reduced
    ),
    **dict.fromkeys(("aten.logsumexp.default", "aten.max.dim", "aten.min.dim"), _reduced),
    "aten.embedding.default": _embedding,
    "aten.gather.default": _gather,
    "aten.scatter_add.default": _scatter_add,
    "aten.scaled_dot_product_attention.default": _attention,
}
