"""``run_op``: dispatch of graph ops to their implementations on meta tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from autosbp.costmodel.memory import matmul, norms_and_lookups, pointwise, recurrent, views
from autosbp.costmodel.memory.autograd import MetaAutograd
from autosbp.costmodel.memory.meta_tensors import MetaTensor, Shape
from autosbp.costmodel.memory.pointwise import UNARY
from autosbp.costmodel.memory.saved_tensors import saved_inputs, saves_output, workspace_bytes
from autosbp.graph.custom_functions import scan_of
from autosbp.graph.ir import DTYPE_BYTES, LogicalGraph, Node, Ref


@dataclass(frozen=True, slots=True)
class OpCall:
    """One op on one rank: its tensors in the order of ``node.refs()``, and the local shapes of its outputs."""

    m: MetaAutograd
    graph: LogicalGraph
    node: Node
    ins: Sequence[MetaTensor]
    shapes: Sequence[Shape]
    widths: Sequence[int]
    expert_share: float = 1.0

    def argument(self, at: int, default: Any = None) -> Any:
        return self.node.args[at] if len(self.node.args) > at else default

    def tensor(self, at: int) -> MetaTensor | None:
        """The tensor at an argument's position, or None."""
        before = sum(isinstance(arg, Ref) for arg in self.node.args[:at])
        return self.ins[before] if isinstance(self.argument(at), Ref) else None

    @property
    def shape(self) -> Shape:
        return self.shapes[0]

    @property
    def width(self) -> int:
        return self.widths[0]


_STEP_STATES = 7
"""Values that one step of a scan holds, in sizes of its largest state."""


def widths_of(node: Node) -> list[int]:
    """Bytes per element of each output."""
    return [DTYPE_BYTES[meta.dtype] for meta in node.outputs]


def run_op(call: OpCall) -> list[MetaTensor]:
    """Outputs of the op.

    An op without a handler saves the tensors of ``saved_tensors.SAVED`` or its rule, and allocates a gradient for each
    input that has one; a scan also holds the values of one step.
    """
    name = call.node.op
    if name in UNARY and call.node.outputs[0].is_float and len(call.ins) == 1:
        return [pointwise.unary(call.m, call.ins[0], UNARY[name])]
    if not any(meta.is_float for meta in call.node.outputs) and name not in _VIEWS:
        return [call.m.new(shape, width) for shape, width in zip(call.shapes, call.widths, strict=True)]
    handler = HANDLERS.get(name)
    return _generic_op(call) if handler is None else handler(call)


def _generic_op(call: OpCall) -> list[MetaTensor]:
    m, scan = call.m, scan_of(call.node.op)
    outs = [m.new(shape, width) for shape, width in zip(call.shapes, call.widths, strict=True)]
    kept = [call.ins[at] for at in saved_inputs(call.graph, call.node) if at < len(call.ins)]
    kept += outs[:1] if saves_output(call.graph, call.node) else []
    beside = workspace_bytes(call.graph, call.node, [each.shape for each in call.ins])
    kept += [m.new((beside,), 1)] if beside else []
    wanted = [None if each.node is None else (each.shape, each.width) for each in call.ins]
    floats = [out for out, meta in zip(outs, call.node.outputs, strict=True) if meta.is_float]
    of_step = 0 if scan is None else _STEP_STATES * max(each.num_bytes for each in call.ins[: scan.carries])

    def run(_: Sequence[Any], __: Sequence[Any]) -> list[MetaTensor | None]:
        found = [None if each is None else m.new(*each) for each in wanted]
        m.new((of_step,), 1)  # freed at once
        return found

    m.new((of_step,), 1)  # freed at once
    m.record(floats, call.ins, kept, run)
    return outs


def _arithmetic(call: OpCall) -> list[MetaTensor]:
    if len(call.ins) == 1:
        divides = call.node.op.startswith("aten.div.") and not isinstance(call.argument(0), Ref)
        return [pointwise.scalar(call.m, call.node.op, call.ins[0], call.width, keeps_input=divides)]
    return [pointwise.binary(call.m, call.node.op, call.ins[0], call.ins[1], call.width)]


def _cast(call: OpCall) -> list[MetaTensor]:
    x = call.ins[0]
    same = call.graph.meta(next(call.node.refs())).dtype == call.node.outputs[0].dtype
    return [x if same else pointwise.cast(call.m, x, call.width)]


def _where(call: OpCall) -> list[MetaTensor]:
    return [pointwise.where(call.m, call.ins[0], call.tensor(1), call.tensor(2), call.width)]


def _masked_fill(call: OpCall) -> list[MetaTensor]:
    return [pointwise.where(call.m, call.ins[1], call.ins[0], None, call.width)]


def _l1_loss(call: OpCall) -> list[MetaTensor]:
    """The absolute difference, which saves the difference, and its sum or mean if reduced."""
    difference = pointwise.binary(call.m, "aten.sub.Tensor", call.ins[0], call.ins[1], call.width)
    each = pointwise.unary(call.m, difference, UNARY["aten.abs.default"])
    reduction = call.argument(2, call.node.kwargs.get("reduction", 1))
    return [views.sum_or_mean(call.m, each, call.shape, call.width, mean=reduction == 1) if reduction else each]


def _dropout(call: OpCall) -> list[MetaTensor]:
    on = bool(call.argument(2, True)) and float(call.argument(1, 0.5)) > 0
    return [pointwise.dropped(call.m, call.ins[0]) if on else call.ins[0]]


def _reshape(call: OpCall) -> list[MetaTensor]:
    return [views.reshape(call.m, call.ins[0], call.shape)]


def _permute(call: OpCall) -> list[MetaTensor]:
    rank = len(call.shape)
    return [views.permute(call.m, call.ins[0], [dim % rank for dim in call.argument(1)])]


def _transpose(call: OpCall) -> list[MetaTensor]:
    one, two = (call.argument(1, 0), call.argument(2, 1)) if len(call.shape) > 1 else (0, 0)
    return [views.transpose(call.m, call.ins[0], one, two)]


def _expand(call: OpCall) -> list[MetaTensor]:
    return [views.expand(call.m, call.ins[0], call.shape)]


def _slice(call: OpCall) -> list[MetaTensor]:
    x, dim, step = call.ins[0], call.argument(1, 0) % len(call.shape), call.argument(4, 1)
    strides = tuple(stride * step if at == dim else stride for at, stride in enumerate(x.strides))
    return [views.slice_view(call.m, x, call.shape, strides)]


def _select(call: OpCall) -> list[MetaTensor]:
    x = call.ins[0]
    dim = call.argument(1, 0) % len(x.shape)
    return [views.slice_view(call.m, x, call.shape, (*x.strides[:dim], *x.strides[dim + 1 :]))]


def _cat(call: OpCall) -> list[MetaTensor]:
    return [views.cat(call.m, call.ins, call.shape, call.width)]


def _sum(call: OpCall) -> list[MetaTensor]:
    return [views.sum_or_mean(call.m, call.ins[0], call.shape, call.width, mean="mean" in call.node.op)]


def _linear(call: OpCall) -> list[MetaTensor]:
    return [matmul.linear(call.m, call.ins[0], call.ins[1], call.tensor(2))]


def _product(call: OpCall) -> list[MetaTensor]:
    return [matmul.mm(call.m, call.shape, call.ins[0], call.ins[1])]


def _addmm(call: OpCall) -> list[MetaTensor]:
    return [matmul.mm(call.m, call.shape, call.ins[1], call.ins[2], call.ins[0])]


def _matmul(call: OpCall) -> list[MetaTensor]:
    return [matmul.matmul(call.m, call.ins[0], call.ins[1])]


def _einsum(call: OpCall) -> list[MetaTensor]:
    if len(call.ins) != 2 or "." in call.argument(0):
        return _generic_op(call)
    return [matmul.einsum(call.m, call.argument(0), call.ins, call.width)]


def _convolution(call: OpCall) -> list[MetaTensor]:
    return [matmul.convolution(call.m, call.ins[0], call.ins[1], call.tensor(2), call.shape)]


def _attention(call: OpCall) -> list[MetaTensor]:
    query, key, value = call.ins[:3]
    mask = call.tensor(3)
    dropped = float(call.argument(4, 0.0)) > 0
    scores = call.m.device == "cpu" and (
        dropped or len(query.shape) != 4 or (mask is not None and mask.node is not None)
    )
    return [matmul.attention(call.m, query, key, value, mask, scores=scores)]


def _softmax(call: OpCall) -> list[MetaTensor]:
    return [matmul.softmax(call.m, call.ins[0], call.width)]


def _layer_norm(call: OpCall) -> list[MetaTensor]:
    x = call.ins[0]
    rows = x.shape[: len(x.shape) - len(call.argument(1))]
    layer = "layer_norm" in call.node.op
    weight, bias = call.tensor(2), call.tensor(3)
    if not layer and call.m.device == "cpu":
        return [norms_and_lookups.rms_norm_of_ops(call.m, x, weight, (*rows, *[1] * len(call.argument(1))))]
    return [norms_and_lookups.norm(call.m, x, weight, bias, rows, 1 + layer, max(4, x.width), keeps_bias=layer)]


def _group_norm(call: OpCall) -> list[MetaTensor]:
    x = call.ins[0]
    statistics = (x.shape[0], min(call.argument(1), x.shape[1]))
    return [norms_and_lookups.norm(call.m, x, call.tensor(2), call.tensor(3), statistics, 2, max(4, x.width))]


def _batch_norm(call: OpCall) -> list[MetaTensor]:
    x = call.ins[0]
    return [norms_and_lookups.norm(call.m, x, call.tensor(1), call.tensor(2), (x.shape[1],), 2, max(4, x.width))]


def _max_pool(call: OpCall) -> list[MetaTensor]:
    return [norms_and_lookups.pool(call.m, call.ins[0], call.shape, indices=True)]


def _average_pool(call: OpCall) -> list[MetaTensor]:
    if prod(call.shape[-2:]) == 1:
        return [views.sum_or_mean(call.m, call.ins[0], call.shape, call.width, mean=True)]
    return [norms_and_lookups.pool(call.m, call.ins[0], call.shape, indices=False)]


def _embedding(call: OpCall) -> list[MetaTensor]:
    return [norms_and_lookups.embedding(call.m, call.ins[0], call.ins[1])]


def _gather(call: OpCall) -> list[MetaTensor]:
    """``gather``, which saves its source too, ``index_select`` and indexing by tensors."""
    x, *indices = call.ins
    kept = [x, *indices] if "gather" in call.node.op else indices
    return [norms_and_lookups.gather(call.m, x, kept, call.shape)]


def _index_put(call: OpCall) -> list[MetaTensor]:
    """A copy with values put in: the gradient is a copy with zeros there, and that of the values is looked up."""
    x, *indices, values = call.ins
    return [norms_and_lookups.index_put(call.m, x, indices, values)]


def _scatter_add(call: OpCall) -> list[MetaTensor]:
    keeps_source = "index_add" in call.node.op
    return [norms_and_lookups.scatter_add(call.m, call.ins[0], call.ins[1], call.ins[2], keeps_source=keeps_source)]


def _largest(call: OpCall) -> list[MetaTensor]:
    return norms_and_lookups.topk(call.m, call.ins[0], call.shape)


def _max_pool_with_indices(call: OpCall) -> list[MetaTensor]:
    return norms_and_lookups.pool_with_indices(call.m, call.ins[0], call.shape)


def _deviation(call: OpCall) -> list[MetaTensor]:
    return [norms_and_lookups.deviation(call.m, call.ins[0], call.shape, keeps_output="std" in call.node.op)]


def _experts(call: OpCall) -> list[MetaTensor]:
    x, index, weight, *stacks = call.ins
    return [norms_and_lookups.experts(call.m, x, index, weight, stacks, call.argument(6), call.expert_share)]


def _recurrent(call: OpCall) -> list[MetaTensor]:
    found = recurrent.layers_of(call.node, len(call.ins))
    return _generic_op(call) if found is None else recurrent.recurrent(call.m, found, call.ins)


def _copy(call: OpCall) -> list[MetaTensor]:
    return [pointwise.clone(call.m, call.ins[0])]


def _detach(call: OpCall) -> list[MetaTensor]:
    return [call.ins[0].view(call.ins[0].shape, call.ins[0].strides)]


Handler = Callable[[OpCall], list[MetaTensor]]
_VIEWS: Mapping[str, Handler] = {
    "aten.reshape.default": _reshape, "aten.view.default": _reshape, "aten.flatten.using_ints": _reshape,
    "aten.unsqueeze.default": _reshape, "aten.squeeze.dim": _reshape, "aten.squeeze.default": _reshape,
    "aten.unflatten.int": _reshape, "aten.permute.default": _permute, "aten.transpose.int": _transpose,
    "aten.t.default": _transpose, "aten.expand.default": _expand, "aten.slice.Tensor": _slice,
    "aten.select.int": _select, "aten.detach.default": _detach,
}  # fmt: skip
HANDLERS: Mapping[str, Handler] = {
    **_VIEWS,
    **dict.fromkeys(("aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.div.Tensor"), _arithmetic),
    **dict.fromkeys(("aten.add.Scalar", "aten.sub.Scalar", "aten.mul.Scalar", "aten.div.Scalar"), _arithmetic),
    "aten.rsub.Scalar": _arithmetic,
    "aten.to.dtype": _cast,
    "aten.clone.default": _copy,
    "aten.where.self": _where, "aten.where.ScalarOther": _where, "aten.where.ScalarSelf": _where,
    "aten.masked_fill.Scalar": _masked_fill,
    "aten.dropout.default": _dropout,
    "aten.l1_loss.default": _l1_loss,
    "aten.cat.default": _cat,
    "aten.sum.default": _sum, "aten.sum.dim_IntList": _sum, "aten.mean.default": _sum, "aten.mean.dim": _sum,
    "aten.linear.default": _linear, "aten.mm.default": _product, "aten.bmm.default": _product,
    "aten.addmm.default": _addmm, "aten.matmul.default": _matmul,
    "aten.einsum.default": _einsum,
    **{f"aten.conv{dims}d.{kind}": _convolution for dims in "123" for kind in ("default", "padding")},
    "aten.scaled_dot_product_attention.default": _attention,
    "aten.softmax.int": _softmax, "aten.log_softmax.int": _softmax,
    "aten.layer_norm.default": _layer_norm, "aten.rms_norm.default": _layer_norm,
    "aten.group_norm.default": _group_norm, "aten.batch_norm.default": _batch_norm,
    **{f"aten.max_pool{dims}d.default": _max_pool for dims in "123"},
    **{f"aten.max_pool{dims}d_with_indices.default": _max_pool_with_indices for dims in "23"},
    **{f"aten.{kind}_pool{dims}d.default": _average_pool for dims in "123" for kind in ("avg", "adaptive_avg")},
    "aten.embedding.default": _embedding, "aten.gather.default": _gather, "aten.index_select.default": _gather,
    "aten.index.Tensor": _gather, "aten.index_put.default": _index_put,
    "aten.scatter_add.default": _scatter_add, "aten.index_add.default": _scatter_add,
    "aten.topk.default": _largest, "aten.sort.default": _largest, "aten.max.dim": _largest, "aten.min.dim": _largest,
    **{f"aten.{name}.{kind}": _deviation for name in ("std", "var") for kind in ("dim", "correction", "default")},
    "autosbp.experts.default": _experts,
    **dict.fromkeys(recurrent.CELLS, _recurrent),
}  # fmt: skip
