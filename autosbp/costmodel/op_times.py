"""Time of one op of a program at its local shape: measured, else by the roofline of its FLOPs and bytes.

Measurements are in the dtypes of the operands, so an op in float8 takes its roofline time.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod

import numpy as np

from autosbp.costmodel.compute import ComputeModel, op_key, with_local_attributes
from autosbp.costmodel.float8 import roofline_work
from autosbp.graph.ir import FLOAT8, LogicalGraph, TensorMeta
from autosbp.plan.plan import Strategy
from autosbp.program.chosen_options import checked_choices, implemented_axes
from autosbp.program.program import Item, Op
from autosbp.sbp.boxing import split_factor
from autosbp.sbp.layout import local_shape
from autosbp.sbp.rules import sharding_of


def op_times_s(graph: LogicalGraph, strategy: Strategy, item: Op, compute: ComputeModel) -> tuple[float, float]:
    """Forward and backward seconds of one op at its local shape; data ops are free."""
    if item.signature is None:
        return 0.0, 0.0
    node, mesh = item.node, strategy.mesh
    sharding = sharding_of(graph, node)
    if sharding.free:
        return 0.0, 0.0
    metas = [graph.meta(ref) for ref in node.refs()]
    ins = [local_shape(meta.sizes, layout, mesh) for meta, layout in zip(metas, item.signature.ins, strict=True)]
    out = local_shape(node.outputs[0].sizes, item.signature.outs[0], mesh)
    choices = checked_choices(graph, node, item.signature, mesh.ndim)
    in_bytes, out_bytes = (
        [np.array([meta.num_bytes / split_factor(layout, mesh)]) for meta, layout in zip(each, layouts, strict=True)]
        for each, layouts in ((metas, item.signature.ins), (node.outputs, item.signature.outs))
    )
    moved = roofline_work(graph, node, in_bytes, out_bytes)
    if compute.measured and moved.dtype != FLOAT8 and not implemented_axes(choices):
        parts = zip(mesh.axes, choices, strict=True)
        paths = [(path, axis.size) for axis, choice in parts for path in choice.divided]
        local = Op(with_local_attributes(node, paths), item.reads, item.signature)
        measured = compute.measured.get(local_op_key(graph, local, ins, out, metas))
        if measured is not None:
            return measured.forward_s, measured.backward_s
    work = prod(axis.size for axis, choice in zip(mesh.axes, choices, strict=True) if choice.divides)
    skewed = prod(axis.size for axis, choice in zip(mesh.axes, choices, strict=True) if choice.skewed)
    flops = sharding.flops / work * (2 - 1 / skewed)  # the last of n parts of a triangle is (2n - 1) / n of the mean
    forward, backward = compute.roofline_s(
        node.op, moved.dtype, np.array([flops]), moved.num_bytes, sharding.launches, moved.scaling_bytes
    )
    return float(forward[0]), float(backward[0])


def all_op_times_s(
    graph: LogicalGraph, strategy: Strategy, items: Sequence[Item], compute: ComputeModel
) -> dict[int, tuple[float, float]]:
    """``op_times_s`` of the ops among these items, by position.

    Without measurements, ops of equal shapes and layouts take the same time, which is computed once.
    """
    found: dict[int, tuple[float, float]] = {}
    known: dict[Hashable, tuple[float, float]] = {}
    for at, item in enumerate(items):
        if not isinstance(item, Op):
            continue
        if compute.measured or item.signature is None:
            found[at] = op_times_s(graph, strategy, item, compute)
            continue
        node = item.node
        metas = tuple(graph.meta(ref) for ref in node.refs())
        key = (node.op, id(sharding_of(graph, node)), metas, node.outputs, item.signature)
        if key not in known:
            known[key] = op_times_s(graph, strategy, item, compute)
        found[at] = known[key]
    return found


def local_op_key(
    graph: LogicalGraph, item: Op, ins: list[tuple[int, ...]], out: tuple[int, ...], metas: list[TensorMeta]
) -> str:
    """The key under which a calibration times this op at this local shape."""
    refs = list(item.node.refs())
    grads = [graph.has_gradient(ref) for ref in refs]
    highs = [None if meta.is_float or meta.dtype == "bool" else graph.high for meta in metas]
    return op_key(item.node, ins, out, [meta.dtype for meta in metas], grads, highs)
