"""Which ops leave the gradients of their weights for later, where a schedule wants that (zero bubble)."""

from __future__ import annotations

from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.plan import Strategy
from autosbp.sbp.parameters import ParameterFlow
from autosbp.sbp.program import Op

LINEAR = "aten.linear.default"


def deferring(graph: LogicalGraph, strategy: Strategy, flow: ParameterFlow) -> frozenset[str]:
    """The linear ops in the gradient's way whose weights' gradients are added outside of autograd: to the parameters, where
    they are read as they are stored, or to copies that stay until the step is over.

    Copies for one use are gone by then; and what a recomputed run reads, and others too, brings its gradients through it.
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


def may_defer(graph: LogicalGraph, strategy: Strategy) -> bool:
    """Whether any op of a program, or of a part of it, may be one of those, under a schedule that wants it."""
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


def returns_late(strategy: Strategy) -> bool:
    """Whether the gradients of parameters that are gathered once a step return when all passes are over, as some are not
    there when the last backward is."""
    return strategy.pipeline is not None and strategy.pipeline.schedule.splits_backward and strategy.gather == "step"
