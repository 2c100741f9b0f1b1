"""A plan measured beside its baselines, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosbp.api import LogicalGraph, Plan, PlanOptions, capture, load_cluster, make_plan
from autosbp.errors import InputError
from autosbp.report.verdict import verdict
from autosbp.tuning.comparison import PLAN, MeasuredStrategy, compare_strategies
from autosbp.tuning.trial_pool import TrialEffort


@pytest.mark.integration
def test_strategies_are_measured_in_turn_with_the_losses_of_one_device(
    graph: LogicalGraph, plan: Plan, tmp_path: Path
) -> None:
    told: list[str] = []
    effort = TrialEffort(steps=2)
    measured = compare_strategies(plan, graph, rounds=2, effort=effort, workdir=tmp_path, log=told.append)
    names = [each.name for each in measured]
    assert names[0] == PLAN and len(names) > 1 and set(names[1:]) < set(plan.document["baselines"])
    assert told == [f"round {at} of 2: {name}" for at, turn in ((1, names), (2, names[::-1])) for name in turn]
    for each in measured:
        assert [len(steps) for steps in each.times_s] == [2, 2] and each.step_time_s > 0
        assert each.collectives_match and each.loss_difference < 1e-5
    assert measured[0].ratio == 1 and measured[0].predicted_step_time_s == plan.document["step_time_s"]


def test_only_baselines_of_the_plan_can_be_compared_with(graph: LogicalGraph, plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="baseline: 'ddp' is invalid: expected one of the plan's: data_parallel"):
        compare_strategies(plan, graph, ["ddp"], workdir=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def faces() -> tuple[Plan, LogicalGraph]:
    graph = capture("zoo:faces-demo")
    options = PlanOptions(global_batch=64, baselines=("data_parallel", "zero2", "megatron_lm"))
    return make_plan(graph, load_cluster("local:4"), None, options), graph


def measured_with(**ratios: float) -> list[MeasuredStrategy]:
    return [
        MeasuredStrategy(name, 0.1, ((ratio,),), ratio, 0.0, True) for name, ratio in ({PLAN: 1.0} | ratios).items()
    ]


def test_the_verdict_names_what_is_split_in_another_way(faces: tuple[Plan, LogicalGraph]) -> None:
    plan, graph = faces
    assert verdict(plan, graph, measured_with(data_parallel=5.9, megatron_lm=1.32)) == (
        "the plan is 1.32 x faster than megatron_lm, the fastest baseline, and 5.9 x faster than data_parallel: head.weight "
        "(39.06 MiB, 99.1 % of the parameters) is split over 4 devices by dim 0 (20,000) instead of whole on every device"
    )
    assert verdict(plan, graph, measured_with(zero2=1.05)).startswith("the plan is 5 % faster than zero2, the fastest")
    same = verdict(plan, graph, measured_with(megatron_lm=1.004, data_parallel=2))
    assert same == "the plan is as fast as megatron_lm, the fastest baseline"
    assert verdict(plan, graph, measured_with(zero2=0.5)) == "zero2 is 2 x faster than the plan"
    assert verdict(plan, graph, measured_with()) == "no baseline differs from the plan"
