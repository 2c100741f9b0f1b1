"""Plans that begin with an earlier one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from autosbp.api import LogicalGraph, Plan, PlanOptions, capture, load_cluster, make_plan, predict_costs

OPTIONS = PlanOptions(global_batch=16, baselines=())


@cache
def graph() -> LogicalGraph:
    return capture("zoo:gpt2-demo")


@cache
def earlier(**options: int) -> Plan:
    return make_plan(graph(), load_cluster("local:2x2"), options=replace(OPTIONS, **options))


@pytest.mark.parametrize("batch", [16, 32, 48])
def test_a_plan_that_begins_with_an_earlier_one_is_the_plan_from_nothing(batch: int) -> None:
    """Its batch may be another: what is stored is costed anew, never handed out."""
    cluster, options = load_cluster("local:2x2"), replace(OPTIONS, global_batch=batch)
    cold = make_plan(graph(), cluster, options=options)
    warm = make_plan(graph(), cluster, options=options, start=earlier().strategy)
    assert warm.document["step_time_s"] == pytest.approx(cold.document["step_time_s"], rel=1e-9)
    costs = predict_costs(graph(), warm.strategy, cluster)
    assert costs.step_time_s == warm.document["step_time_s"]
    assert warm.strategy.global_batch == batch


def test_a_plan_under_random_search_is_no_slower_than_its_start() -> None:
    options = replace(OPTIONS, searcher="random", time_limit_s=1.0)
    cluster = load_cluster("local:2x2")
    warm = make_plan(graph(), cluster, options=options, start=earlier().strategy)
    assert warm.document["step_time_s"] <= earlier().document["step_time_s"] * (1 + 1e-9)


def test_pipelines_start_with_other_batches() -> None:
    piped = earlier(stages=2).strategy
    options = replace(OPTIONS, global_batch=32, stages=2)
    cold = make_plan(graph(), load_cluster("local:2x2"), options=options)
    warm = make_plan(graph(), load_cluster("local:2x2"), options=options, start=piped)
    assert warm.document["step_time_s"] <= cold.document["step_time_s"] * (1 + 1e-9)
    assert warm.strategy.num_stages == 2


@pytest.mark.parametrize(
    ("model", "cluster", "asked"),
    [
        ("zoo:mlp-small", "local:2x2", {}),
        ("zoo:gpt2-demo", "local:4", {}),
        ("zoo:gpt2-demo", "local:8", {}),
        ("zoo:gpt2-demo", "local:2x2", {"stages": 2}),
        ("zoo:gpt2-demo", "local:2x2", {"memory_limit_bytes": 60_000_000}),
    ],
)
def test_what_does_not_fit_is_left_aside(model: str, cluster: str, asked: dict[str, int]) -> None:
    """Another model, other levels, fewer devices, other stages, less memory: as if nothing had been given."""
    options = replace(OPTIONS, **asked)
    cold = make_plan(capture(model), load_cluster(cluster), options=options)
    warm = make_plan(capture(model), load_cluster(cluster), options=options, start=earlier().strategy)
    assert warm.document["step_time_s"] <= cold.document["step_time_s"] * (1 + 1e-9)
    assert predict_costs(capture(model), warm.strategy, load_cluster(cluster)).step_time_s == pytest.approx(
        warm.document["step_time_s"]
    )
