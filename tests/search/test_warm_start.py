"""Plans that begin with an earlier one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from autosbp.api import LogicalGraph, Plan, PlanOptions, capture, load_cluster, make_plan, pareto_front, predict_costs
from autosbp.errors import InputError
from autosbp.plan.plan import BUCKET_BYTES
from autosbp.search.branch_and_bound.bucket_sizes import BUCKET_SIZES
from autosbp.search.planner import Planner
from autosbp.search.warm_start import cost_warm_start

pytestmark = pytest.mark.integration

OPTIONS = PlanOptions(global_batch=16, baselines=())


@cache
def graph() -> LogicalGraph:
    return capture("zoo:gpt2-demo")


@cache
def earlier(**options: int) -> Plan:
    return make_plan(graph(), load_cluster("local:2x2"), options=replace(OPTIONS, **options))


@pytest.mark.some(2)
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


@pytest.mark.some(2)
@pytest.mark.parametrize("batch", [24, 48])
@pytest.mark.parametrize("stages", [1, 2])
def test_a_plan_is_no_slower_than_its_start_at_its_own_batch(batch: int, stages: int) -> None:
    """Nor is what either search proves above what the other one found."""
    cluster, options = load_cluster("local:2x2"), replace(OPTIONS, global_batch=batch, stages=stages)
    start = earlier(stages=stages).strategy
    here = cost_warm_start(start, Planner(graph(), cluster, None, options, None).problems, cluster, options).candidate
    assert here is not None and here.strategy.global_batch == batch
    assert predict_costs(graph(), here.strategy, cluster) == here.costs
    warm = make_plan(graph(), cluster, options=options, start=start).document
    cold = make_plan(graph(), cluster, options=options).document
    assert warm["step_time_s"] <= here.costs.step_time_s
    assert max(warm["lower_bound_s"], cold["lower_bound_s"]) <= min(warm["step_time_s"], cold["step_time_s"])


@pytest.mark.parametrize(
    ("size", "asked", "kept"),
    [
        (BUCKET_SIZES[0], None, BUCKET_SIZES[0]),
        (BUCKET_SIZES[-1], None, BUCKET_SIZES[-1]),
        (7_000_000, None, BUCKET_BYTES),
        (BUCKET_SIZES[0], 7, 7),
    ],
)
def test_a_start_keeps_messages_of_a_size_that_may_be_chosen(size: int, asked: int | None, kept: int) -> None:
    cluster, options = load_cluster("local:2x2"), replace(OPTIONS, bucket_bytes=asked)
    problems = Planner(graph(), cluster, None, options, None).problems
    found = cost_warm_start(replace(earlier().strategy, bucket_bytes=size), problems, cluster, options).candidate
    assert found is not None and found.strategy.bucket_bytes == kept


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
    ("model", "cluster", "asked", "why"),
    [
        ("zoo:mlp-small", "local:2x2", {}, "it does not match mlp-small: it has no layout of layers.0.weight."),
        ("zoo:gpt2-demo", "local:4", {}, "its 1 stages of 2 x 2 devices do not match local:4"),
        ("zoo:gpt2-demo", "local:8", {}, "its 1 stages of 2 x 2 devices do not match local:8"),
        ("zoo:gpt2-demo", "local:2x2", {"stages": 2}, "it has 1 stages instead of the requested 2"),
        ("zoo:gpt2-demo", "local:2x2", {"memory_limit_bytes": 60_000_000}, "the limit is 60000000"),
    ],
)
@pytest.mark.some(2)
def test_an_unusable_warm_start_is_skipped_with_a_reason(
    model: str, cluster: str, asked: dict[str, int], why: str
) -> None:
    """Another model, other levels, fewer devices, other stages, less memory: as if nothing had been given."""
    options = replace(OPTIONS, **asked)
    cold = make_plan(capture(model), load_cluster(cluster), options=options)
    warm = make_plan(capture(model), load_cluster(cluster), options=options, start=earlier().strategy)
    assert warm.document["step_time_s"] <= cold.document["step_time_s"] * (1 + 1e-9)
    (said,) = [each for each in warm.document["warnings"] if "start" in each]
    assert said.startswith("The warm start was not used: ") and why in said
    assert cold.document["warnings"] == earlier().document["warnings"] == []
    assert predict_costs(capture(model), warm.strategy, load_cluster(cluster)).step_time_s == pytest.approx(
        warm.document["step_time_s"]
    )


@pytest.mark.parametrize(
    "asked",
    [
        {"pins": {"*": "B"}},
        {"data_parallel": 4},
        {"tensor_parallel": 2},
        {"stage_of": {"linear_0": 0}},
        {"storage": "use"},
    ],
)
def test_options_under_which_no_start_is_looked_at_are_refused_beside_one(asked: dict[str, Any]) -> None:
    ((name, _),) = asked.items()
    with pytest.raises(InputError, match="not allowed with start") as refused:
        make_plan(graph(), load_cluster("local:2x2"), options=replace(OPTIONS, **asked), start=earlier().strategy)
    assert refused.value.field == name


def test_a_start_that_recomputes_is_left_aside_where_that_is_forbidden() -> None:
    again = earlier(recompute=1)
    assert again.strategy.recompute
    plan = make_plan(graph(), load_cluster("local:2x2"), options=replace(OPTIONS, recompute=0), start=again.strategy)
    assert not plan.strategy.recompute
    assert plan.document["warnings"] == ["The warm start was not used: it recomputes blocks, which the options forbid."]


def test_a_front_begins_with_an_earlier_plan() -> None:
    """Where search stops at once, what is fastest is the start, and a leaner plan that is given is on the front."""
    cluster, options = load_cluster("local:2x2"), replace(OPTIONS, searcher="random", time_limit_s=1.0)
    found = pareto_front(graph(), cluster, options=options, num_points=3, start=earlier().strategy)
    assert found[0].document["step_time_s"] <= earlier().document["step_time_s"] * (1 + 1e-9)
    memory = [plan.document["memory_bytes_per_device"] for plan in found]
    assert memory == sorted(memory, reverse=True)


@pytest.mark.parametrize("asked", [{"micro_batch": 8}, {"storage": "as_used"}, {"recompute": 1}])
def test_baselines_that_violate_options_are_no_warm_start(asked: dict[str, Any]) -> None:
    """ZeRO-2 takes the batch at once, stores parameters apart, and recomputes nothing."""
    options = replace(OPTIONS, baselines=("zero2",))
    free = Planner(graph(), load_cluster("local:2x2"), None, options, None)
    assert free.baselines().start(free.baselines().all(free.started)) is not None
    bound = Planner(graph(), load_cluster("local:2x2"), None, replace(options, **asked), None)
    assert bound.baselines().start(bound.baselines().all(bound.started)) is None
