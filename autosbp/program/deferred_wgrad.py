"""Ops whose weight gradients are deferred under zero-bubble schedules."""

from __future__ import annotations

from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.plan.plan import Strategy
from autosbp.program.parameter_flow import ParameterFlow
from autosbp.program.program import Op

LINEAR = "aten.linear.default"


def deferred_linear_ops(graph: LogicalGraph, strategy: Strategy, flow: ParameterFlow) -> frozenset[str]:
    """Linear ops with deferred weight gradients, which are added outside autograd.

    They are added to parameters that the op reads as stored, or to copies that stay until the end of the step. Copies
    gathered for each use are gone by then. Parameters that a recomputed segment shares with other ops are excluded:
    their gradients pass through the segment.
    """
    once = strategy.gather == "step"
    apart = {at: segment.own for segment in flow.segments for at in range(segment.first, segment.last + 1)}
    found = set()
    for at, item in enumerate(flow.items):
        if isinstance(item, Op) and item.signature is not None and item.node.op == LINEAR:
            own = apart.get(at, graph.parameter_names)
            if item.node.name in graph.differentiable and all(
                read.name in graph.parameter_names and read.name in own
                if isinstance(read, Ref)
                else once and read in flow.place
                for read in item.reads[1:]
            ):
                found.add(item.node.name)
    return frozenset(found)


def can_defer_wgrad(graph: LogicalGraph, strategy: Strategy) -> bool:
    """Whether the schedule splits backward and any op of the program may defer its weight gradient."""
    if strategy.pipeline is None or not strategy.pipeline.schedule.splits_backward:
        return False
    if strategy.gather == "step":
        return True
    stored = strategy.parameters
    linear = (node for node in graph.nodes if node.op == LINEAR and node.name in strategy.signatures)
    return any(
        stored.get(ref.name) == layout
        for node in linear
        for ref, layout in zip(node.refs(), strategy.signatures[node.name].ins, strict=True)
    )


def gradients_return_at_end(strategy: Strategy) -> bool:
    """Whether gradients of parameters gathered once a step return only after all passes.

    With deferred weight gradients some are incomplete after the last backward pass.
    """
    return strategy.pipeline is not None and strategy.pipeline.schedule.splits_backward and strategy.gather == "step"
