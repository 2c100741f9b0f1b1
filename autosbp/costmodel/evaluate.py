"""The cost of one strategy: its time, traffic and memory (DESIGN section 7).

Everything is derived from the program's items, the same list that the executor lowers.
"""

from __future__ import annotations

from math import prod

import numpy as np

from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.collectives import StepCollectives
from autosbp.costmodel.compute import ComputeModel, op_key, with_divided
from autosbp.costmodel.memory import memory_bytes
from autosbp.costmodel.network import NetworkModel, beta_factor
from autosbp.graph.ir import LogicalGraph, TensorMeta
from autosbp.plan import BUCKET_BYTES, Costs, Strategy
from autosbp.sbp.boxing import split_factor
from autosbp.sbp.choices import axis_choices, implemented_axes
from autosbp.sbp.parameters import Bucket, local_bytes, parameter_flow
from autosbp.sbp.placement import local_shape
from autosbp.sbp.program import Op
from autosbp.sbp.rules import sharding_of


def evaluate(graph: LogicalGraph, strategy: Strategy, boxing: BoxingModel, compute: ComputeModel) -> Costs:
    """Predicted costs of one training step on one device. ``graph`` is bound at the microbatch, ``boxing`` on the
    strategy's mesh."""
    mesh, network = strategy.mesh, boxing.network
    flow = parameter_flow(graph, strategy)
    compute_s = 0.0
    for item in flow.items:
        if isinstance(item, Op):
            compute_s += strategy.num_micro * op_time_s(graph, strategy, item, compute)
        elif not item.data:
            num_bytes = graph.meta(item.ref).num_bytes
            local_s = sum(boxing.step_cost(step, num_bytes, item.differentiable).local_s for step in item.steps)
            once = item.key in flow.place and strategy.gather == "step"
            compute_s += local_s if once else strategy.num_micro * local_s
    comm_s = traffic = 0.0
    for calls, times in StepCollectives(graph, strategy, flow).phases():
        for call in calls:
            traffic += times * beta_factor(call.kind, mesh.group_size(call.axes)) * call.num_bytes
            if call.phase != "sync":
                comm_s += times * network.time_s(call.kind, call.num_bytes, mesh.group_shape(call.axes))
    optimizer_s = 0.0
    for leaf in graph.trained:
        local = leaf.meta.num_bytes / split_factor(strategy.parameters[leaf.name], mesh)
        optimizer_s += float(compute.optimizer_s(np.array([local]))[0])
    message = shared_message_bytes(graph, strategy.bucket_bytes)
    comm_s += sum(synchronisation_s(graph, strategy, bucket, network, message) for bucket in flow.buckets)
    memory = memory_bytes(graph, strategy, flow)
    return Costs(
        step_time_s=compute_s + comm_s + optimizer_s,
        compute_s=compute_s,
        exposed_comm_s=comm_s,
        bubble_s=0.0,
        optimizer_s=optimizer_s,
        comm_bytes_per_device=round(traffic),
        memory_bytes_per_device=sum(memory.values()),
        memory=memory,
    )


def synchronisation_s(
    graph: LogicalGraph, strategy: Strategy, bucket: Bucket, network: NetworkModel, message: int
) -> float:
    """The all-reduce of a bucket of gradients: the sum of the shares of ``message`` bytes that its parameters pay."""
    sizes = np.array([local_bytes(graph, strategy, name) for name in bucket.names], dtype=np.float64)
    shape = strategy.mesh.group_shape(bucket.axes)
    return float(network.shared_times_s("all_reduce", sizes, message, shape).sum())


def shared_message_bytes(graph: LogicalGraph, bucket_bytes: int = BUCKET_BYTES) -> int:
    """The message that a gradient travels in: a full bucket, or one of all parameters."""
    return min(bucket_bytes, sum(leaf.meta.num_bytes for leaf in graph.parameters))


def op_time_s(graph: LogicalGraph, strategy: Strategy, item: Op, compute: ComputeModel) -> float:
    """Forward and backward seconds of one op at its local shape; data ops are free."""
    if item.signature is None:
        return 0.0
    node, mesh = item.node, strategy.mesh
    sharding = sharding_of(graph, node)
    if sharding.free:
        return 0.0
    metas = [graph.meta(ref) for ref in node.refs()]
    ins = [local_shape(meta.sizes, layout, mesh) for meta, layout in zip(metas, item.signature.ins, strict=True)]
    out = local_shape(node.outputs[0].sizes, item.signature.outs[0], mesh)
    choices = axis_choices(graph, node, item.signature, mesh.ndim)
    if compute.measured and not implemented_axes(choices):
        parts = zip(mesh.axes, choices, strict=True)
        paths = [(path, axis.size) for axis, choice in parts for path in choice.divided]
        local = Op(with_divided(node, paths), item.reads, item.signature)
        measured = compute.measured.get(local_op_key(graph, local, ins, out, metas))
        if measured is not None:
            return measured.forward_s + measured.backward_s
    touched = sum(meta.num_bytes / split_factor(layout, mesh) for meta, layout in zip(
        (*metas, *node.outputs), (*item.signature.ins, *item.signature.outs), strict=True))  # fmt: skip
    work = prod(axis.size for axis, choice in zip(mesh.axes, choices, strict=True) if choice.divides)
    skewed = prod(axis.size for axis, choice in zip(mesh.axes, choices, strict=True) if choice.skewed)
    flops = sharding.flops / work * (2 - 1 / skewed)  # the last of n parts of a triangle is (2n - 1) / n of the mean
    forward, backward = compute.roofline_s(node, node.outputs[0].dtype, np.array([flops]), np.array([touched]))
    return float(forward[0] + backward[0])


def local_op_key(
    graph: LogicalGraph, item: Op, ins: list[tuple[int, ...]], out: tuple[int, ...], metas: list[TensorMeta]
) -> str:
    """The key under which a calibration times this op at this local shape."""
    refs = list(item.node.refs())
    grads = [graph.has_gradient(ref) for ref in refs]
    high = max((leaf.high for leaf in graph.inputs if leaf.high is not None), default=1)
    highs = [None if meta.is_float or meta.dtype == "bool" else high for meta in metas]
    if "embedding" in item.node.op:
        highs = [None if bound is None else min(bound, ins[0][0]) for bound in highs]
    return op_key(item.node, ins, out, [meta.dtype for meta in metas], grads, highs)
