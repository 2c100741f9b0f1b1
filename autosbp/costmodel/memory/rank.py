"""Bytes of one rank by purpose."""

from __future__ import annotations

from math import ceil, prod

from autosbp.costmodel.memory.saved import saved_inputs, saves_output
from autosbp.costmodel.memory.state import state_bytes_per_element
from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.plan import Strategy
from autosbp.sbp.boxing import split_factor
from autosbp.sbp.parameters import ParameterFlow, parameter_flow
from autosbp.sbp.program import Op


def memory_bytes(graph: LogicalGraph, strategy: Strategy, flow: ParameterFlow | None = None) -> dict[str, int]:
    """Bytes per device by purpose. Activations are what autograd keeps of one microbatch, each stored tensor once;
    gathered are copies of parameters in the layouts of their use, and the gradients of these copies."""
    mesh = strategy.mesh
    flow = flow or parameter_flow(graph, strategy)
    kept: dict[object, int] = {}
    for item in flow.items:
        if not isinstance(item, Op) or item.signature is None:
            continue
        refs = list(item.node.refs())
        for position in saved_inputs(graph, item.node):
            if position < len(refs) and refs[position].name in graph.computed:
                read = item.reads[position]
                if refs[position].name not in graph.parameter_names:
                    size = graph.meta(refs[position]).num_bytes / split_factor(item.signature.ins[position], mesh)
                    kept[read] = ceil(size)
        if saves_output(graph, item.node):
            size = item.node.outputs[0].num_bytes / split_factor(item.signature.outs[0], mesh)
            kept[Ref(item.node.name)] = ceil(size)
    parameters = gradients = states = 0
    for leaf in graph.parameters:
        elements = prod(leaf.meta.sizes) // split_factor(strategy.parameters[leaf.name], mesh)
        width = leaf.meta.num_bytes // prod(leaf.meta.sizes) if prod(leaf.meta.sizes) else 0
        parameters += elements * width
        if leaf.trained:
            gradients += elements * width
            states += elements * (state_bytes_per_element(leaf.meta, strategy.optimizer) - 2 * width)
    return {
        "parameters": parameters,
        "gradients": gradients,
        "optimizer": states,
        "activations": sum(kept.values()),
        "data": sum(leaf.meta.num_bytes for leaf in graph.data),
        **({"gathered": gathered_bytes(graph, strategy, flow)} if flow.gathers else {}),
    }


def gathered_bytes(graph: LogicalGraph, strategy: Strategy, flow: ParameterFlow) -> int:
    """Once a step: all copies, and over several microbatches their gradients, else those of the largest message. In each
    use: the largest message with the one that is under way beside it, and its gradients."""
    sizes = [
        sum(graph.meta(box.ref).num_bytes // split_factor(box.dst, strategy.mesh) for box in gather.boxes)
        for gather in flow.gathers
    ]
    if strategy.gather == "step":
        return sum(sizes) + (sum(sizes) if strategy.num_micro > 1 else max(sizes))
    return max(one + two for one, two in zip(sizes, [*sizes[1:], 0], strict=True)) + max(sizes)
