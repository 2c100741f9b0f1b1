"""Stages that recompute as many blocks as each has to: the most that fits is kept, and cuts go with it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from autosbp.api import load_cluster
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.memory.stage_memory import stage_memory
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.p2p_cost import LinkModel
from autosbp.costmodel.pipeline_cost import pipelined_step_s
from autosbp.costmodel.pipeline_program import PipelineProgram
from autosbp.costmodel.recompute import blocks_of_chunks, checkpointing_segments, per_chunk_segments
from autosbp.plan.plan import Strategy
from autosbp.search.branch_and_bound.strategy_coster import StrategyCoster
from autosbp.search.branch_and_bound.uneven_stages import UnevenStages
from autosbp.search.problem.pins import Pins
from autosbp.search.stages.layout_problems import LayoutProblems
from autosbp.search.stages.partition import CutPoints, KeptBlocks, StageProfiles, cut
from tests.search.plans import graph_of, planned

pytestmark = pytest.mark.integration

MODEL, CLUSTER, STAGES = "gpt2", "local:4", 4
OPTIONS = {"global_batch": 16, "micro_batch": 1, "stages": STAGES, "schedules": ("1f1b",)}


@pytest.fixture(scope="module")
def problems() -> LayoutProblems:
    there = load_cluster(CLUSTER)
    return LayoutProblems(
        graph_of(MODEL), NetworkModel(there), ComputeModel(there.device), global_batch=16, optimizer="adamw",
        pins=Pins({}, {}, {}),
    )  # fmt: skip


@pytest.fixture(scope="module")
def every(problems: LayoutProblems) -> Strategy:
    """With each block recomputed."""
    strategy = planned(MODEL, CLUSTER, **OPTIONS, recompute=0).strategy
    assert strategy.pipeline is not None
    return replace(strategy, recompute=checkpointing_segments(problems.blocks, 1, strategy.pipeline.cuts))


def taken(problems: LayoutProblems, strategy: Strategy) -> list[int]:
    stages = PipelineProgram(problems.bound(strategy.micro_batch), strategy)
    return [sum(stage_memory(stages, stage).values()) for stage in range(STAGES)]


def step_s(problems: LayoutProblems, strategy: Strategy) -> float:
    graph, boxing = problems.bound(strategy.micro_batch), problems.boxing(strategy.mesh)
    return pipelined_step_s(graph, strategy, boxing, problems.compute)


def parts_of(problems: LayoutProblems, strategy: Strategy) -> list[list[list[str]]]:
    assert strategy.pipeline is not None
    return blocks_of_chunks(problems.bound(strategy.micro_batch), problems.blocks, strategy.pipeline.cuts)


def kept_of(problems: LayoutProblems, strategy: Strategy) -> list[int]:
    begins = {first for first, _ in strategy.recompute}
    return [sum(part[0] not in begins for part in parts) for parts in parts_of(problems, strategy)]


@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
def test_each_stage_keeps_as_many_blocks_as_fit(problems: LayoutProblems, every: Strategy, share: float) -> None:
    least, most = taken(problems, every), taken(problems, replace(every, recompute=()))
    limit = max(round(max(low + share * (high - low) for low, high in zip(least, most, strict=True))), max(least))
    links = LinkModel(problems.network, problems.compute.copy_bytes_per_s)
    found = UnevenStages(problems, links, limit, {}).of(every, lambda each: step_s(problems, each))
    assert max(taken(problems, found)) <= limit
    assert step_s(problems, found) < step_s(problems, every)
    parts, kept = parts_of(problems, found), kept_of(problems, found)
    assert found.recompute == per_chunk_segments(parts, kept)
    for stage in range(STAGES):
        if kept[stage] < len(parts[stage]):
            more = [count + (at == stage) for at, count in enumerate(kept)]
            assert taken(problems, replace(found, recompute=per_chunk_segments(parts, more)))[stage] > limit
    # Late stages have fewer microbatches in flight.
    recomputed = [len(own) - left for own, left in zip(parts, kept, strict=True)]
    assert recomputed == sorted(recomputed, reverse=True) and recomputed[0] > recomputed[-1]


def test_plans_are_no_slower_and_fit(
    problems: LayoutProblems, every: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    least, most = taken(problems, every)[0], taken(problems, replace(every, recompute=()))[0]
    limit = (least + most) // 2
    found = planned(MODEL, CLUSTER, **OPTIONS, memory_limit_bytes=limit)
    monkeypatch.setattr(StrategyCoster, "stages_alike", False)
    even = planned(MODEL, CLUSTER, **OPTIONS, memory_limit_bytes=limit)
    assert found.document["memory_bytes_per_device"] <= limit and found.strategy.recompute
    assert found.document["step_time_s"] < even.document["step_time_s"]
    assert found.document["lower_bound_s"] <= found.document["step_time_s"]


def test_nothing_changes_where_even_all_recomputed_does_not_fit(problems: LayoutProblems, every: Strategy) -> None:
    links = LinkModel(problems.network, problems.compute.copy_bytes_per_s)
    uneven = UnevenStages(problems, links, max(taken(problems, every)) - 1, {})
    assert uneven.of(every, lambda each: step_s(problems, each)) is every


class _Work:
    """Chunks of blocks; each op is a block or none."""

    def __init__(self, rng: random.Random, count: int, stages: int) -> None:
        def amounts() -> np.ndarray:
            return np.array([rng.random() for _ in range(count)])

        self.seconds, self.sizes = amounts(), amounts()
        self.blocks = np.array([float(rng.random() < 0.7) for _ in range(count)])
        self.again_s = 0.3 * self.seconds * self.blocks
        self.limits = tuple(rng.randint(800, 4000) for _ in range(stages))
        self.kept = tuple(float(rng.randint(100, 900)) for _ in range(stages))
        self.handed = tuple(float(rng.randint(0, 60)) for _ in range(stages))

    def places(self) -> CutPoints:
        def split(amounts: np.ndarray) -> tuple[np.ndarray, float]:
            sums = np.cumsum(amounts)
            return sums[:-1], float(sums[-1])

        keeping = KeptBlocks(*split(self.blocks), *split(self.again_s), self.kept, self.handed)
        before_s, total_s = split(self.seconds)
        stages = len(self.limits)
        pace = StageProfiles((before_s,) * stages, (total_s,) * stages, *split(1000 * self.sizes), self.limits, keeping)
        count = len(self.seconds)
        names = tuple(f"op{at}" for at in range(1, count))
        return CutPoints(names, before_s, np.full(count - 1, 1.0), total_s, stage_profiles=pace)

    def slowest_s(self, cuts: Sequence[int]) -> float:
        ends, worst = (0, *cuts, len(self.seconds)), 0.0
        for stage in range(len(cuts) + 1):
            span = slice(ends[stage], ends[stage + 1])
            blocks = int(self.blocks[span].sum())
            room = self.limits[stage] - 1000 * self.sizes[span].sum() - blocks * self.handed[stage]
            if room < 0:
                return float("inf")
            kept = next(count for count in range(blocks, -1, -1) if count * self.kept[stage] <= room)
            again_s = self.again_s[span].sum() * (1 - kept / blocks) if blocks else 0.0
            sends = 0.1 * ((stage > 0) + (stage < len(cuts)))
            worst = max(worst, self.seconds[span].sum() - self.again_s[span].sum() + again_s + sends)
        return worst


def test_cuts_of_stages_that_keep_what_they_can_are_the_best_of_all_by_enumeration() -> None:
    rng, met = random.Random(3), 0
    for _ in range(200):
        count, stages = rng.randint(5, 9), rng.randint(2, 4)
        work = _Work(rng, count, stages)
        places = work.places()
        best = min(map(work.slowest_s, combinations(range(1, count), stages - 1)))
        found = cut(places, stages, 0.1, stages)
        if best == float("inf"):
            assert found is None
        else:
            assert found is not None
            assert work.slowest_s([places.names.index(name) + 1 for name in found]) == pytest.approx(best)
            met += 1
    assert met > 50
