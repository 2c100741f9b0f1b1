"""Verdict of a measured comparison of a plan with its baselines, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.graph.ir import LogicalGraph, Parameter
from autosbp.plan.plan import Plan, Strategy
from autosbp.sbp.layout import NdSbp
from autosbp.tuning.comparison import PLAN, MeasuredStrategy
from autosbp.utils.formatting import num_bytes, percent

_SAME = 0.01
"""Relative difference of step times up to which strategies count as equally fast."""
_FACTOR = 1.1


def verdict(plan: Plan, graph: LogicalGraph, measured: Sequence[MeasuredStrategy]) -> str:
    """Compare a plan with its fastest and slowest baselines, and name a difference.

    The difference is the largest parameter that the plan and the slowest baseline split in different ways.

    Args:
        plan: the plan with its baselines.
        graph: the plan's graph.
        measured: measurements of the plan and its baselines.

    Returns:
        A sentence without a full stop.
    """
    others = [each for each in measured if each.name != PLAN]
    if not others:
        return "no baseline differs from the plan"
    best = min(others, key=lambda each: each.ratio)
    if abs(best.ratio - 1) < _SAME:
        return f"the plan is as fast as {best.name}, the fastest baseline"
    if best.ratio < 1:
        return f"{best.name} is {_faster(1 / best.ratio)} than the plan"
    slowest = max(others, key=lambda each: each.ratio)
    said = f"the plan is {_faster(best.ratio)} than {best.name}, the fastest baseline"
    if slowest is not best:
        said += f", and {_faster(slowest.ratio)} than {slowest.name}"
    why = _difference(graph, plan.strategy, plan.baseline_strategy(slowest.name))
    return f"{said}: {why}" if why else said


def _faster(ratio: float) -> str:
    return f"{ratio:.3g} x faster" if ratio >= _FACTOR else f"{100 * (ratio - 1):.2g} % faster"


def _difference(graph: LogicalGraph, strategy: Strategy, other: Strategy) -> str:
    """The largest parameter that two strategies split in different ways, in words; "" if there is none."""
    whole = sum(leaf.meta.num_bytes for leaf in graph.parameters)
    for leaf in sorted(graph.parameters, key=lambda leaf: -leaf.meta.num_bytes):
        own, theirs = (_split(graph, leaf, each) for each in (strategy, other))
        if own != theirs:
            size = f"{num_bytes(leaf.meta.num_bytes)}, {percent(leaf.meta.num_bytes, whole)} of the parameters"
            return f"{leaf.name} ({size}) is {own} instead of {theirs}"
    return ""


def _used_layout(graph: LogicalGraph, name: str, strategy: Strategy) -> NdSbp:
    """Layout of a parameter at the first op that reads it; its stored layout if no op does."""
    for node in graph.nodes:
        signature = strategy.signatures.get(node.name)
        for ref, layout in zip(node.refs(), signature.ins if signature else (), strict=False):
            if ref.name == name:
                return layout
    return strategy.parameters[name]


def _split(graph: LogicalGraph, leaf: Parameter, strategy: Strategy) -> str:
    """How a strategy's ops use a parameter, in words."""
    by_dim: dict[int, int] = {}
    for axis, sbp in enumerate(_used_layout(graph, leaf.name, strategy)):
        if sbp.is_split:
            by_dim[sbp.dim] = by_dim.get(sbp.dim, 1) * strategy.mesh.shape[axis]
    if not by_dim:
        return "whole on every device"
    parts = (f"{size} devices by dim {dim} ({leaf.meta.sizes[dim]:,})" for dim, size in by_dim.items())
    return f"split over {' and '.join(parts)}"
