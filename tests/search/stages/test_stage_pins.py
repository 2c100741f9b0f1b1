"""Ops that are given a stage are in it, and the cuts are the best of those that hold them there."""

from __future__ import annotations

import random
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest

from autosbp.api import PlanOptions, predict_costs
from autosbp.costmodel.pipeline_program import PipelineProgram
from autosbp.errors import InfeasibleError, InputError
from autosbp.search.stages.partition import CutPoints, cut
from autosbp.search.stages.stage_pins import read_stages
from tests.search.plans import graph_of, planned

pytestmark = pytest.mark.integration

CASES: dict[str, dict[str, int]] = {
    "an early op late": {"linear_3": 1},
    "a parameter's reader": {"transformer.h.1.mlp.c_fc.bias": 1},
    "each block in its stage": {f"transformer.h.{at}.*": at for at in range(4)},
    "against the program's order": {"linear_0": 1, "linear_20": 0},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.some(2)
def test_ops_are_in_the_stages_that_they_are_given(name: str) -> None:
    graph, plan = graph_of("gpt2-demo"), planned(stage_of=CASES[name])
    strategy = plan.strategy
    assert strategy.pipeline is not None
    stages = PipelineProgram(graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch)), strategy)
    home = {
        node.name: stage
        for stage in range(strategy.num_stages)
        for chunk in stages.of(stage)
        for node in chunk.graph.nodes
        if node.name in strategy.signatures
    }
    held = read_stages(graph, CASES[name])
    assert held
    assert {op: home[op] for op in held} == held
    assert predict_costs(graph, strategy, plan.cluster).step_time_s == plan.document["step_time_s"]
    assert plan.document["options"]["stage_of"] == CASES[name]
    free = planned(stages=strategy.num_stages).document
    assert plan.document["step_time_s"] >= free["lower_bound_s"]


def test_repeated_blocks_of_a_folded_model_are_held_too() -> None:
    plan = planned("gpt2", "dgx-a100-40g:1", global_batch=64, stages=2, stage_of={"transformer.h.8.*": 0})
    assert plan.strategy.pipeline is not None
    positions = graph_of("gpt2").positions
    begins = [positions[name] for name in plan.strategy.pipeline.cuts]
    for op in read_stages(graph_of("gpt2"), {"transformer.h.8.*": 0}):
        assert sum(begin <= positions[op] for begin in begins) % 2 == 0


def test_cuts_leave_the_quickest_slowest_chunk_of_those_that_hold_ops() -> None:
    rng = random.Random(0)
    for _ in range(60):
        count = rng.randint(4, 8)
        own = np.array([rng.random() for _ in range(count + 1)])
        before = np.cumsum(own)
        held = tuple((rng.randint(0, count), rng.randint(0, 1)) for _ in range(2))
        places = CutPoints(
            tuple(f"op{at}" for at in range(count)), before[:-1], np.ones(count), float(before[-1]),
            tuple(range(1, count + 1)), held,
        )  # fmt: skip
        chunks = rng.choice([2, 4])

        def slowest(
            picked: tuple[int, ...], before: np.ndarray = before, held: tuple[tuple[int, int], ...] = held
        ) -> float:
            if any(sum(at + 1 <= op for at in picked) % 2 != stage for op, stage in held):
                return float("inf")
            ends = [0.0, *(before[at] for at in picked), float(before[-1])]
            sends = [0.0, *[0.01] * len(picked), 0.0]
            spans = zip(pairwise(ends), pairwise(sends), strict=True)
            return float(max(two - one + first + last for (one, two), (first, last) in spans))

        best = min(slowest(picked) for picked in combinations(range(count), chunks - 1))
        cuts = cut(places, chunks, 0.01, 2)
        if cuts is None:
            assert best == float("inf")
        else:
            assert slowest(tuple(places.names.index(name) for name in cuts)) == pytest.approx(best)


CONTRADICTIONS: dict[str, tuple[dict[str, Any], set[str], str]] = {
    "two stages for one op": (
        {"stage_of": {"linear_0": 1, "linear_*": 0}},
        {"stage_of.linear_0=1", "stage_of.linear_*=0"},
        "linear_0 is already assigned to stage 1",
    ),
    "more stages than are allowed": (
        {"stage_of": {"linear_0": 2, "linear_20": 2}, "stages": 2},
        {"stage_of.linear_20=2", "stages=2"},
        "more stages",
    ),
    "an order that the schedule does not have": (
        {"stage_of": {"linear_0": 1, "linear_20": 0}, "schedules": ("1f1b",)},
        {"stage_of.linear_0=1", "stage_of.linear_20=0", "schedules=1f1b"},
        "no pipeline cuts satisfy these assignments",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions_name_what_excludes_each_other(name: str) -> None:
    options, conflict, detail = CONTRADICTIONS[name]
    with pytest.raises(InfeasibleError, match=detail) as caught:
        planned(**options)
    assert set(caught.value.conflict) == conflict


def test_names_and_stages_are_checked() -> None:
    with pytest.raises(InputError, match="stage_of: 'linaer_0' .*linear_0"):
        planned(stage_of={"linaer_0": 0})
    for value in (["linear_0"], {"linear_0": "1"}, {"linear_0": -1}, {"linear_0": 2**30}, {0: 1}):
        with pytest.raises(InputError, match="stage_of"):
            PlanOptions.from_dict({"stage_of": value})
