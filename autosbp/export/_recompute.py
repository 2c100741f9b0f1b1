"""Recomputed blocks as other tools have them: layers, by their number."""

from __future__ import annotations

from dataclasses import dataclass

from autosbp.costmodel.recompute import block_runs, recomputable_blocks
from autosbp.errors import UnsupportedError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Plan


@dataclass(frozen=True, slots=True)
class Recomputed:
    """The first ``layers`` of ``count``, ``interval`` together; of a pipeline, those of all chunks, of each of which the
    last ones are kept. No layer is 0 and 0."""

    layers: int
    count: int
    interval: int


def recomputed_layers(plan: Plan, graph: LogicalGraph, target: str) -> Recomputed:
    """Which layers a plan recomputes, or an ``UnsupportedError`` where these are no first layers, of each chunk, in runs of
    one length."""
    runs = plan.strategy.recompute
    bound = graph.bind(**dict.fromkeys(graph.symbols, plan.strategy.micro_batch))
    blocks = recomputable_blocks(bound) if runs else ()
    if not runs:
        return Recomputed(0, 0, 0)
    cuts = plan.strategy.pipeline.cuts if plan.strategy.pipeline else ()
    for interval in range(1, len(blocks) + 1):
        for kept in range(len(blocks)):
            if block_runs(blocks, interval, cuts, kept) == runs:
                return Recomputed(len(block_runs(blocks, 1, cuts, kept)), len(blocks), interval)
    raise UnsupportedError(
        f"{target} recomputes whole layers, the first ones, as many of each chunk; the plan has others, {list(runs[0])} first:"
        " --recompute 1 plans with all of them"
    )
