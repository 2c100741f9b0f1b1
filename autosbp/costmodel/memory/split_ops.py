"""Split implementations on meta tensors: tensors that ``executor.split_ops`` saves and allocates temporarily."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from autosbp.costmodel.memory import norms_and_lookups
from autosbp.costmodel.memory.autograd import MetaAutograd
from autosbp.costmodel.memory.matmul import new_heads_inside_length
from autosbp.costmodel.memory.meta_tensors import MetaTensor, Shape
from autosbp.costmodel.memory.op_memory import OpCall, run_op
from autosbp.costmodel.memory.pointwise import where
from autosbp.sbp.mesh import Mesh


@dataclass(frozen=True, slots=True)
class SplitMemory:
    """Full-size temporaries of an implementation for a tensor ``x``.

    ``forward`` and ``backward`` count those that live next to the result, or next to the gradients, at the peak.
    """

    forward: int
    backward: int


NORM, SCALED_NORM = SplitMemory(1, 1), SplitMemory(1, 2)
"""If the weight varies along the normalised dims, the gradient times the weight is one more temporary."""
SOFTMAX, LOG_SOFTMAX, EXTREMUM, LOGSUMEXP = SplitMemory(0, 2), SplitMemory(0, 1), SplitMemory(1, 2), SplitMemory(1, 1)


def run_split(call: OpCall, axes: Mapping[str, tuple[int, ...]], mesh: Mesh) -> list[MetaTensor]:
    """Outputs of an op with a split implementation; ``axes`` are the mesh axes by the factor that they split."""
    handler = _HANDLERS.get(call.node.op)
    if call.node.op == "autosbp.experts.default":
        ranks = mesh.group_size([axis for each in axes.values() for axis in each])
        return run_op(replace(call, expert_share=1 / ranks))
    if call.node.op == "aten.group_norm.default" and set(axes) == {"g"}:
        return run_op(call)
    return run_op(call) if handler is None else handler(call)


def _record_with_temporaries(
    m: MetaAutograd,
    outs: list[MetaTensor],
    ins: Sequence[MetaTensor | None],
    kept: Sequence[MetaTensor],
    full: Shape,
    way: SplitMemory,
) -> list[MetaTensor]:
    """Record an implementation with temporaries of shape ``full``."""
    width = outs[0].width
    between = [m.new(full, width) for _ in range(way.forward)]
    del between
    shapes = [None if each is None or each.node is None else each.shape for each in ins]

    def run(grads: list[Any], _: Sequence[Any]) -> list[MetaTensor | None]:
        between = [m.new(full, width) for _ in range(way.backward)]
        found = [None if shape is None else m.new(shape, grads[0].width) for shape in shapes]
        del between
        return found

    m.record(outs[:1], ins, kept, run)
    return outs


def _norm(call: OpCall) -> list[MetaTensor]:
    m, x = call.m, call.ins[0]
    at = 1 if "batch_norm" in call.node.op else 2
    weight, bias = call.tensor(at), call.tensor(at + 1)
    rms = "rms_norm" in call.node.op
    rows = [m.new(_rows(call), max(4, x.width)) for _ in range(1 if rms else 2)]
    out = m.empty_like(x)
    kept = [x, *rows, *([] if weight is None else [weight])]
    scaled = weight is not None and at == 2
    return _record_with_temporaries(m, [out], [x, weight, bias], kept, x.shape, SCALED_NORM if scaled else NORM)


def _rows(call: OpCall) -> Shape:
    """Shape of the statistics: one number per group of elements that are normalised together."""
    x = call.ins[0]
    if "batch_norm" in call.node.op:
        return (x.shape[1],)
    if "group_norm" in call.node.op:
        return (x.shape[0], min(call.argument(1), x.shape[1]))
    return x.shape[: len(x.shape) - len(call.argument(1))]


def _softmax(call: OpCall) -> list[MetaTensor]:
    out = call.m.new(call.shape, call.width)
    way = LOG_SOFTMAX if "log_softmax" in call.node.op else SOFTMAX
    return _record_with_temporaries(call.m, [out], [call.ins[0]], [out], call.shape, way)


def _reduced(call: OpCall) -> list[MetaTensor]:
    m, x = call.m, call.ins[0]
    outs = [m.new(shape, width) for shape, width in zip(call.shapes, call.widths, strict=True)]
    if len(outs) == 2:
        return _record_with_temporaries(m, outs, [x], outs[1:], x.shape, SplitMemory(0, 0))
    lse = "logsumexp" in call.node.op
    return _record_with_temporaries(m, outs, [x], [x, outs[0]], x.shape, LOGSUMEXP if lse else EXTREMUM)


def _embedding(call: OpCall) -> list[MetaTensor]:
    m, (weight, ids) = call.m, call.ins[:2]
    local, outside = m.empty_like(ids), m.new((*ids.shape, 1), 1)
    inside = m.empty_like(local)
    rows = norms_and_lookups.embedding(m, weight, inside)
    return [where(m, outside, rows, None, call.width)]


def _gather(call: OpCall) -> list[MetaTensor]:
    m, (x, index) = call.m, call.ins[:2]
    local, outside = m.empty_like(index), m.new(index.shape, 1)
    inside = m.empty_like(local)
    return [where(m, outside, norms_and_lookups.gather(m, x, [x, inside], call.shape), None, call.width)]


def _scatter_add(call: OpCall) -> list[MetaTensor]:
    m, (x, index, source) = call.m, call.ins[:3]
    local, outside = m.empty_like(index), m.new(index.shape, 1)
    added = where(m, outside, source, None, call.width)
    return [norms_and_lookups.scatter_add(m, x, m.empty_like(local), added)]


def _attention(call: OpCall) -> list[MetaTensor]:
    m, (query, key, value) = call.m, call.ins[:3]
    mask = call.tensor(3)
    if mask is not None and mask.width == 1:
        mask = m.new(mask.shape, query.width)
    total = m.new(query.shape[:-1], max(4, query.width))
    out = m.new((*query.shape[:-1], value.shape[-1]), query.width)
    between = new_heads_inside_length(m, out.shape, out.width)
    del between
    shapes = [query.shape, key.shape, value.shape]
    product, full = prod(query.shape[:-1]), query.shape

    def run(grads: list[Any], _: Sequence[Any]) -> list[MetaTensor]:
        between = [m.new((product,), grads[0].width), m.new(full, grads[0].width), m.new(full, grads[0].width)]
        found = [new_heads_inside_length(m, shape, grads[0].width) for shape in shapes]
        del between
        return found

    m.record([out], [query, key, value], [query, key, value, out, total, *([] if mask is None else [mask])], run)
    return [out]


_HANDLERS: Mapping[str, Callable[[OpCall], list[MetaTensor]]] = {
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
