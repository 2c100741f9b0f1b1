"""The cost of one strategy: its collectives in order, its time, traffic and memory (DESIGN section 7).

Everything is derived from the program's items, the same list that the executor lowers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel, op_key
from autosbp.costmodel.memory import saved_inputs, saves_output, state_bytes_per_element
from autosbp.costmodel.network import beta_factor
from autosbp.costmodel.split_ops import internal_collectives
from autosbp.graph.ir import LogicalGraph, Ref, TensorMeta
from autosbp.plan import Costs, Strategy
from autosbp.sbp.boxing import COLLECTIVES, message_bytes, split_factor
from autosbp.sbp.choices import axis_choices, implemented_axes
from autosbp.sbp.placement import B, NdSbp, local_shape
from autosbp.sbp.program import Box, Item, Op, program_items
from autosbp.sbp.rules import sharding_of


@dataclass(frozen=True, slots=True)
class Collective:
    """One charged collective: message n in bytes, mesh axes of its group, and why it happens."""

    kind: str
    num_bytes: int
    axes: tuple[int, ...]
    phase: str  # "forward", "backward" or "sync"
    cause: str


def collectives(graph: LogicalGraph, strategy: Strategy) -> list[Collective]:
    """Every collective of one training step, in the order in which each rank issues them.

    Backward is the exact reverse of forward: autograd runs nodes in descending order of creation. Gradients of B
    parameters are synchronised once, after the last microbatch, in the graph's order of parameters.
    """
    return microbatch_collectives(graph, strategy) * strategy.num_micro + synchronisations(graph, strategy)


def microbatch_collectives(graph: LogicalGraph, strategy: Strategy) -> list[Collective]:
    """Forward, then backward, of one microbatch."""
    forward: list[Collective] = []
    backward: list[Collective] = []
    for item in program_items(graph, strategy):
        for call in _item_collectives(graph, strategy, item):
            (forward if call.phase == "forward" else backward).append(call)
    return forward + backward[::-1]


def synchronisations(graph: LogicalGraph, strategy: Strategy) -> list[Collective]:
    """The all-reduces of gradients at the end of a step."""
    calls = []
    for leaf in graph.parameters:
        layout = strategy.parameters[leaf.name]
        axes = synchronised_axes(layout)
        if axes:
            local = leaf.meta.num_bytes // split_factor(layout, strategy.mesh)
            calls.append(Collective("all_reduce", local, axes, "sync", leaf.name))
    return calls


def synchronised_axes(layout: NdSbp) -> tuple[int, ...]:
    """The axes over which a parameter's gradient is partial."""
    return tuple(axis for axis, sbp in enumerate(layout) if sbp == B)


def _item_collectives(graph: LogicalGraph, strategy: Strategy, item: Item) -> Iterator[Collective]:
    mesh = strategy.mesh
    if isinstance(item, Box):
        num_bytes = graph.meta(item.ref).num_bytes
        for step in item.steps:
            message = message_bytes(step, num_bytes, mesh)
            if step.forward in COLLECTIVES:
                yield Collective(step.forward, message, step.axes, "forward", item.ref.name)
            if step.backward in COLLECTIVES and item.differentiable:
                yield Collective(step.backward, message, step.axes, "backward", item.ref.name)
    elif item.signature is not None:
        choices = axis_choices(graph, item.node, item.signature, mesh.ndim)
        for call in internal_collectives(graph, item.node, choices, mesh):
            yield Collective(call.kind, call.num_bytes, call.axes, call.phase, item.node.name)


def evaluate(graph: LogicalGraph, strategy: Strategy, boxing: BoxingModel, compute: ComputeModel) -> Costs:
    """Predicted costs of one training step on one device. ``graph`` is bound at the microbatch, ``boxing`` on the
    strategy's mesh."""
    mesh, network = strategy.mesh, boxing.network
    compute_s = local_s = 0.0
    for item in program_items(graph, strategy):
        if isinstance(item, Op):
            compute_s += op_time_s(graph, strategy, item, compute)
        elif not item.data:
            num_bytes = graph.meta(item.ref).num_bytes
            local_s += sum(boxing.step_cost(step, num_bytes, item.differentiable).local_s for step in item.steps)
    comm_s = traffic = 0.0
    repeated = ((microbatch_collectives(graph, strategy), strategy.num_micro), (synchronisations(graph, strategy), 1))
    for calls, times in repeated:
        for call in calls:
            comm_s += times * network.time_s(call.kind, call.num_bytes, mesh.group_shape(call.axes))
            traffic += times * beta_factor(call.kind, mesh.group_size(call.axes)) * call.num_bytes
    optimizer_s = 0.0
    for leaf in graph.parameters:
        local = leaf.meta.num_bytes / split_factor(strategy.parameters[leaf.name], mesh)
        optimizer_s += float(compute.optimizer_s(np.array([local]))[0])
    compute_s = strategy.num_micro * (compute_s + local_s)
    memory = memory_bytes(graph, strategy)
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
        measured = compute.measured.get(local_op_key(graph, item, ins, out, metas))
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


def memory_bytes(graph: LogicalGraph, strategy: Strategy) -> dict[str, int]:
    """Bytes per device by purpose. Activations are what autograd keeps of one microbatch, each stored tensor once."""
    mesh = strategy.mesh
    kept: dict[object, int] = {}
    for item in program_items(graph, strategy):
        if not isinstance(item, Op) or item.signature is None:
            continue
        refs = list(item.node.refs())
        for position in saved_inputs(item.node):
            if position < len(refs) and refs[position].name in graph.computed:
                read = item.reads[position]
                if refs[position].name not in graph.parameter_names:
                    size = graph.meta(refs[position]).num_bytes / split_factor(item.signature.ins[position], mesh)
                    kept[read] = ceil(size)
        if saves_output(item.node):
            size = item.node.outputs[0].num_bytes / split_factor(item.signature.outs[0], mesh)
            kept[Ref(item.node.name)] = ceil(size)
    parameters = states = 0
    for leaf in graph.parameters:
        elements = prod(leaf.meta.sizes) // split_factor(strategy.parameters[leaf.name], mesh)
        width = leaf.meta.num_bytes // prod(leaf.meta.sizes) if prod(leaf.meta.sizes) else 0
        parameters += elements * width
        states += elements * (state_bytes_per_element(leaf.meta, strategy.optimizer) - 2 * width)
    return {
        "parameters": parameters,
        "gradients": parameters,
        "optimizer": states,
        "activations": sum(kept.values()),
        "data": sum(leaf.meta.num_bytes for leaf in graph.data),
    }
