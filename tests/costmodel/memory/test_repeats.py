"""Blocks that are left out of a dry run, against running them all."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from autosbp.api import LogicalGraph, PlanOptions, load_cluster, make_plan
from autosbp.costmodel.memory import memory_bytes, rank_memory
from autosbp.costmodel.memory.autograd import Machine
from autosbp.costmodel.memory.rank import StepRun
from autosbp.costmodel.memory.repeats import Mark, Regions, Skip, UnlikeError
from autosbp.costmodel.memory.tensors import Meter, Storage
from autosbp.costmodel.recompute import block_runs, recomputable_blocks
from autosbp.plan import Strategy
from autosbp.sbp.parameters import parameter_flow
from autosbp.search.planner import Planner
from tests.search.plans import graph_of

MODELS = {
    "gpt2": True,  # blocks are left out
    "bert-large": True,
    "llama-7b": True,
    "t5-large": False,  # every block of the decoder reads what the encoder made
    "resnet50": False,
    "moe": False,
}


@cache
def planned(model: str, micro_batch: int, storage: str) -> tuple[Strategy, LogicalGraph]:
    """A strategy without stages, and its graph."""
    options = PlanOptions(
        global_batch=64, stages=1, micro_batch=micro_batch, storage=storage, recompute=0, baselines=(),
        memory_limit_bytes=1 << 50,
    )  # fmt: skip
    graph, cluster = graph_of(model), load_cluster("dgx-a100-40g:1")
    strategy = make_plan(graph, cluster, None, options).strategy
    return strategy, Planner(graph, cluster, None, options, None).problems.bound(micro_batch)


def runs_of(strategy: Strategy, graph: LogicalGraph) -> tuple[StepRun, StepRun]:
    """With all blocks, and without those that may be left out."""
    flow = parameter_flow(graph, strategy)
    every, few = (StepRun(graph, strategy, flow, Machine(Meter(), device="cuda")) for _ in range(2))
    few.leave_out()
    return every, few


@pytest.mark.parametrize("recompute", [None, 0, 5])
@pytest.mark.parametrize("storage", ["as_used", "step", "use"])
@pytest.mark.parametrize("micro_batch", [8, 32, 64])
@pytest.mark.parametrize("model", ["gpt2", "bert-large", "llama-7b"])
def test_memory_is_that_of_all_blocks(model: str, micro_batch: int, storage: str, recompute: int | None) -> None:
    """Of 8, 2 and 1 microbatches; recomputed but for so many blocks."""
    strategy, graph = planned(model, micro_batch, storage)
    if recompute is not None:
        strategy = replace(strategy, recompute=block_runs(recomputable_blocks(graph), 1, (), recompute))
    assert memory_bytes(graph, strategy, device="cuda") == dict(rank_memory(graph, strategy, device="cuda").parts)


@pytest.mark.parametrize("model", MODELS)
def test_blocks_are_left_out_of_models_whose_blocks_hand_on_one_value(model: str) -> None:
    strategy, graph = planned(model, 8, "as_used")
    every, few = runs_of(strategy, graph)
    assert bool(few.repeats.skips) == MODELS[model]
    if few.may_leave_out:
        assert few.step() == every.step()
    assert not every.repeats.skips


def test_copies_of_different_bytes_are_told_of() -> None:
    """What looks alike, and is not."""
    meter = Meter()
    regions, skip = Regions(meter), Skip(0, 1, 5)
    held = []
    for number, size in enumerate((10, 10, 12)):
        held.append(Storage(meter, size, "activations"))
        regions.pass_by(Mark(skip, number))
    with pytest.raises(UnlikeError):
        regions.fullest()


@pytest.mark.parametrize(("kept", "rise", "last"), [(10, 3, 0), (10, 30, 0), (-10, 3, 0), (0, 7, 50)])
def test_what_is_left_out_has_its_most_at_one_of_its_ends(kept: int, rise: int, last: int) -> None:
    """Blocks that keep, or free, so many bytes and take ``rise`` more meanwhile; ``last`` as many when all are over."""
    count = 5

    def run(meter: Meter, blocks: int, regions: Regions, skip: Skip | None) -> Counter[str]:
        held = [Storage(meter, 10, "activations") for _ in range(20)]
        for block in range(blocks):
            if skip is not None and block:
                regions.pass_by(Mark(skip, block - 1))
            above = Storage(meter, rise, "temporaries")
            del above
            if kept > 0:
                held.append(Storage(meter, kept, "activations"))
            elif kept < 0:
                held.pop()
        above = Storage(meter, last, "temporaries")
        del above
        return regions.fullest()

    every, few = Meter(), Meter()
    expected = run(every, 4 + count, Regions(every), None)
    left_out = Regions(few)
    assert run(few, 4, left_out, Skip(0, 1, count)) == expected
    assert left_out.added.get("activations", 0) == count * kept
