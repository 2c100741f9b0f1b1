"""Passes of a stage's chunks that stand for others that are like them."""

from __future__ import annotations

import pytest

from autosbp.api import PlanOptions, load_cluster, make_plan
from autosbp.costmodel.memory.autograd import Machine
from autosbp.costmodel.memory.stage import ChunkRun, _run
from autosbp.costmodel.memory.tensors import Meter
from autosbp.costmodel.stages import Chunk, Stages
from autosbp.pipeline import GPIPE
from autosbp.plan import Strategy
from autosbp.search.planner import Planner
from tests.search.plans import graph_of

BATCH = 64


class EveryPass(ChunkRun):
    """No pass stands for another."""

    @property
    def sends_nothing(self) -> bool:
        return False


def machine() -> Machine:
    return Machine(Meter(), device="cuda")


@pytest.mark.parametrize("recompute", [0, 1])
@pytest.mark.parametrize(("stages", "micro_batch"), [(8, 4), (8, 32), (8, 64), (2, 4)])
def test_passes_that_stand_for_others_take_what_these_do(stages: int, micro_batch: int, recompute: int) -> None:
    """Of 16, 2 and 1 microbatches; on stages of one device no message comes with the last microbatch alone."""
    graph, cluster = graph_of("gpt2"), load_cluster("dgx-a100-40g:1")
    options = PlanOptions(
        global_batch=BATCH,
        stages=stages,
        micro_batch=micro_batch,
        recompute=recompute,
        schedules=(GPIPE,),
        baselines=(),
    )
    strategy = make_plan(graph, cluster, None, options).strategy
    bound = Planner(graph, cluster, None, options, None).problems.bound(micro_batch)
    once = [check(chunk, strategy) for chunk in Stages(bound, strategy).chunks]
    assert all(once) == (stages == 8)


def check(chunk: Chunk, strategy: Strategy) -> bool:
    """Whether the chunk's passes stood for others."""
    peaks, kept, waiting = _run(chunk, strategy, "cuda", False)
    assert waiting == 0
    assert peaks == EveryPass(chunk, strategy, machine()).peaks()
    assert kept == ChunkRun(chunk, strategy, machine()).kept()
    return ChunkRun(chunk, strategy, machine()).sends_nothing
