"""Recomputed blocks as other tools have them: layers, by their number."""

from __future__ import annotations

from dataclasses import dataclass

from autosbp.costmodel.recompute import block_runs, recomputable_blocks
from autosbp.errors import UnsupportedError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Plan


@dataclass(frozen=True, slots=True)
class Recomputed:
    """The first ``layers`` of ``count``, ``interval`` together; no layer is 0 and 0."""

    layers: int
    count: int
    interval: int


def recomputed_layers(plan: Plan, graph: LogicalGraph, target: str) -> Recomputed:
    """Which layers a plan without stages recomputes, or an ``UnsupportedError`` where these are no first layers in runs of
    one length."""
    runs = plan.strategy.recompute
    bound = graph.bind(**dict.fromkeys(graph.symbols, plan.strategy.micro_batch))
    blocks = recomputable_blocks(bound) if runs else ()
    if not runs:
        return Recomputed(0, 0, 0)
    for interval in range(1, len(blocks) + 1):
        for kept in range(len(blocks)):
            if block_runs(blocks, interval, (), kept) == runs:
                return Recomputed(len(blocks) - kept, len(blocks), interval)
    raise UnsupportedError(f"{target} recomputes whole layers, the first ones; the plan has {list(runs[0])} first")
