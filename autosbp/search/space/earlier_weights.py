"""Zero-bubble strategies that do not fit in memory, with gradients of weights that wait for fewer passes.

What waits keeps the inputs of products and the gradients of their outputs. Stage s has s microbatches of them where it waits
to fill all of its bubble (ZB-H1; Qi et al. 2023, section 2.1); with a lag of 0 each comes behind its own backward pass.
"""

from __future__ import annotations

from dataclasses import replace

from autosbp.costmodel.alike import KnownChunks
from autosbp.costmodel.memory.stage import memory_runs, stage_memory
from autosbp.costmodel.stages import Stages
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Strategy


def with_earlier_weights(
    graph: LogicalGraph, strategy: Strategy, limit: int, device: str, known: KnownChunks
) -> Strategy:
    """The strategy with the longest lag with which it takes no more than ``limit`` bytes of any device, by bisection; as it is
    where all of them fit, and with a lag of 0 where none does. ``known`` has the memory of its chunks. Of another schedule, or
    with a lag, it stays as it is."""
    pipeline = strategy.pipeline
    if pipeline is None or not pipeline.schedule.splits_backward or pipeline.weights_lag is not None:
        return strategy
    stages = Stages(graph, strategy)
    known.prepare(memory_runs(stages, stages.chunks, device))

    def fits(lag: int) -> bool:
        stages.pipeline = replace(pipeline, weights_lag=lag)
        # The last stages have most that waits.
        every = reversed(range(pipeline.num_stages))
        return all(sum(stage_memory(stages, at, device=device, known=known).values()) <= limit for at in every)

    low, high = 0, pipeline.num_stages - 1
    if fits(high):
        return strategy
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return replace(strategy, pipeline=replace(pipeline, weights_lag=low))
