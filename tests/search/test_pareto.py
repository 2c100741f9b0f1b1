"""The front of step time against memory: no plan on it is beaten, and each is a whole plan."""

from __future__ import annotations

from functools import cache

import pytest

from autosbp.api import Plan, PlanOptions, capture, load_cluster, make_plan, pareto_front, predict_costs
from autosbp.errors import InputError

pytestmark = pytest.mark.integration

MODELS = ["mlp-small", "gpt2-demo"]


@cache
def front_of(model: str) -> tuple[Plan, ...]:
    options = PlanOptions(16, stages=1, time_limit_s=6.0)
    return pareto_front(capture(f"zoo:{model}"), load_cluster("local:2x2"), None, options, 5)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.some(2)
def test_plans_on_the_front_take_more_time_and_less_memory_one_after_the_other(model: str) -> None:
    front = front_of(model)
    assert 2 <= len(front) <= 5
    steps = [plan.document["step_time_s"] for plan in front]
    memory = [plan.document["memory_bytes_per_device"] for plan in front]
    assert steps == sorted(set(steps))
    assert memory == sorted(set(memory), reverse=True)
    assert memory[-1] < 0.8 * memory[0]


@pytest.mark.some(2)
@pytest.mark.parametrize("model", MODELS)
def test_each_plan_on_the_front_is_whole_and_fits_its_limit(model: str) -> None:
    graph, cluster = capture(f"zoo:{model}"), load_cluster("local:2x2")
    for at, plan in enumerate(front_of(model)):
        document = plan.document
        assert Plan.from_dict(plan.to_dict()).strategy == plan.strategy
        costs = predict_costs(graph, plan.strategy, cluster).to_dict()
        assert {name: document[name] for name in costs} == costs
        assert document["memory_bytes_per_device"] <= document["memory_limit_bytes"]
        assert bool(document["baselines"]) == (at == 0)


@pytest.mark.long
def test_a_plan_within_less_memory_is_not_faster_than_the_front() -> None:
    graph, cluster = capture("zoo:mlp-small"), load_cluster("local:2x2")
    front = front_of("mlp-small")
    for plan in front[1:]:
        limit = plan.document["memory_bytes_per_device"] + 1
        found = make_plan(graph, cluster, None, PlanOptions(16, stages=1, memory_limit_bytes=limit, baselines=()))
        assert found.document["step_time_s"] >= plan.document["step_time_s"] * (1 - 2e-3)


def test_the_front_of_one_device_is_its_plan_alone_or_smaller_microbatches() -> None:
    front = pareto_front(capture("zoo:mlp-small"), load_cluster("local:1"), None, PlanOptions(8, baselines=()), 3)
    assert front[0].strategy.mesh.ndim == 0


@pytest.mark.parametrize("num_points", [1, 65, 2.5])
def test_the_number_of_points_is_checked(num_points: int) -> None:
    with pytest.raises(InputError, match="num_points"):
        pareto_front(capture("zoo:mlp-small"), load_cluster("local:2"), num_points=num_points)
