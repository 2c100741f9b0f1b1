"""Passes of a stage's chunks that stand for others that are like them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from autosbp.api import LogicalGraph, PlanOptions, load_cluster, make_plan
from autosbp.costmodel.memory.autograd import MetaAutograd
from autosbp.costmodel.memory.meta_tensors import MemoryMeter
from autosbp.costmodel.memory.stage_memory import ChunkRun, _run
from autosbp.costmodel.pipeline_program import PipelineChunk, PipelineProgram
from autosbp.costmodel.recompute import checkpointing_segments, recomputable_blocks
from autosbp.plan.plan import Strategy
from autosbp.plan.schedules import GPIPE
from autosbp.search.planner import Planner
from tests.search.plans import graph_of

pytestmark = pytest.mark.integration

BATCH = 64


class EveryPass(ChunkRun):
    """No pass stands for another."""

    @property
    def last_microbatch_is_uniform(self) -> bool:
        return False


def machine() -> MetaAutograd:
    return MetaAutograd(MemoryMeter(), device="cuda")


@pytest.mark.some(3)
@pytest.mark.parametrize("recompute", [0, 1])
@pytest.mark.parametrize(("stages", "micro_batch"), [(8, 4), (8, 32), (8, 64), (2, 4)])
def test_representative_passes_use_the_memory_of_those_they_replace(
    stages: int, micro_batch: int, recompute: int
) -> None:
    """Of 16, 2 and 1 microbatches; on stages of one device no message comes with the last microbatch alone."""
    graph, cluster = graph_of("gpt2"), load_cluster("dgx-a100-80g:1")
    options = PlanOptions(
        global_batch=BATCH,
        stages=stages,
        micro_batch=micro_batch,
        recompute=recompute,
        schedules=(GPIPE.name,),
        baselines=(),
    )
    strategy = make_plan(graph, cluster, None, options).strategy
    bound = Planner(graph, cluster, None, options, None).problems.bound(micro_batch)
    once = [check(chunk, strategy) for chunk in PipelineProgram(bound, strategy).chunks]
    assert all(once) == (stages == 8)


def check(chunk: PipelineChunk, strategy: Strategy, *, defers: bool = False) -> bool:
    """Whether the chunk's passes stood for others."""
    peaks, kept, waiting = _run(chunk, strategy, "cuda", defers)
    every = EveryPass(chunk, strategy, machine(), defers=defers)
    assert peaks == every.peaks()
    assert waiting == every.waiting
    assert kept == ChunkRun(chunk, strategy, machine()).bytes_per_microbatch()
    return ChunkRun(chunk, strategy, machine()).last_microbatch_is_uniform


@pytest.mark.parametrize("defers", [False, True])
@pytest.mark.parametrize("kept", [0, 5, 16])
@pytest.mark.parametrize("count", [8, 2, 1])
@pytest.mark.parametrize("storage", ["as_used", "use"])
@pytest.mark.some(4)
def test_blocks_that_are_left_out_take_what_they_would(storage: str, count: int, kept: int, defers: bool) -> None:
    """Two stages of 16 layers on 4 devices each, recomputed but for the last ones; of so many microbatches."""
    strategy, bound = two_stages(storage, count)
    assert strategy.pipeline is not None
    runs = checkpointing_segments(recomputable_blocks(bound), 1, strategy.pipeline.cuts, kept)
    strategy = replace(strategy, recompute=runs)
    for chunk in PipelineProgram(bound, strategy).chunks:
        run = ChunkRun(chunk, strategy, machine(), defers=defers)
        run.skip_repeats()
        # Copies of one message for all blocks stay where nothing is recomputed.
        assert run.repeats.skips or (storage == "use" and kept == 16)
        assert run.can_skip_repeats == (storage == "use")
        check(chunk, strategy, defers=defers)


@cache
def two_stages(storage: str, count: int) -> tuple[Strategy, LogicalGraph]:
    """A strategy of Llama 7B, and its graph."""
    graph, cluster = graph_of("llama-7b"), load_cluster("dgx-a100-80g:1")
    options = PlanOptions(
        global_batch=4 * count, stages=2, micro_batch=4, schedules=(GPIPE.name,), storage=storage, tensor_parallel=4,
        recompute=0, memory_limit_bytes=1 << 50, baselines=(),
    )  # fmt: skip
    strategy = make_plan(graph, cluster, None, options).strategy
    return strategy, Planner(graph, cluster, None, options, None).problems.bound(4)
