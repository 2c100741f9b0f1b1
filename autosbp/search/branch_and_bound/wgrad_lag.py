"""Shorter delay of weight gradients in zero-bubble strategies that do not fit in memory.

A deferred weight gradient keeps the inputs of its matmul and the gradient of its output. Stage s defers s microbatches
if it fills its whole bubble (ZB-H1; Qi et al. 2023, section 2.1). With a lag of 0, each weight gradient follows its own
backward pass.
"""

from __future__ import annotations

from dataclasses import replace

from autosbp.costmodel.chunk_cache import ChunkCostCache
from autosbp.costmodel.memory.stage_memory import memory_runs, stage_memory
from autosbp.costmodel.pipeline_program import PipelineProgram
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Strategy


def with_shorter_wgrad_lag(
    graph: LogicalGraph, strategy: Strategy, limit: int, device: str, known: ChunkCostCache
) -> Strategy:
    """The strategy with the longest weight gradient lag that fits on every device, by bisection.

    Unchanged if it fits already, if it has a lag, or if its schedule does not split backward. With a lag of 0 if
    nothing fits.

    Args:
        graph: bound to the microbatch size.
        strategy: to change.
        limit: bytes per device.
        device: kind of the device.
        known: caches the memory of chunks.
    """
    pipeline = strategy.pipeline
    if pipeline is None or not pipeline.schedule.splits_backward or pipeline.weights_lag is not None:
        return strategy
    stages = PipelineProgram(graph, strategy)
    known.prepare(memory_runs(stages, stages.chunks, device))

    def fits(lag: int) -> bool:
        stages.pipeline = replace(pipeline, weights_lag=lag)
        # The last stages defer most weight gradients.
        every = reversed(range(pipeline.num_stages))
        return all(sum(stage_memory(stages, at, device=device, known=known).values()) <= limit for at in every)

    low, high = 0, pipeline.num_stages - 1
    if fits(high):
        return strategy
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return replace(strategy, pipeline=replace(pipeline, weights_lag=low))
