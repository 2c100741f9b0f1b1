"""Plans use all devices, and say when some of them would do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autosbp.api import Plan, PlanOptions, capture, load_cluster, make_plan
from autosbp.cluster import Cluster
from autosbp.plan import Costs, Strategy
from autosbp.search.fewer import fewer_devices, repeats

OPTIONS = PlanOptions(global_batch=64, baselines=())


def test_a_small_model_does_with_few_devices() -> None:
    graph, cluster = capture("zoo:mlp-small"), load_cluster("piz-daint:16")
    plan = make_plan(graph, cluster, options=PlanOptions(global_batch=16))
    fewer = plan.document["fewer_devices"]
    assert fewer["num_devices"] < 16 == plan.strategy.num_devices
    level = replace(cluster.levels[0], count=fewer["num_devices"])
    there = make_plan(graph, replace(cluster, levels=(level,)), options=PlanOptions(global_batch=16))
    assert there.document["step_time_s"] == pytest.approx(fewer["step_time_s"])
    assert fewer["step_time_s"] <= 1.01 * plan.document["step_time_s"]
    assert Plan.from_dict(plan.to_dict()).plan_id == plan.plan_id


def test_where_all_compute_most_of_the_time_nothing_is_looked_for() -> None:
    plan = make_plan(capture("zoo:gpt2-demo"), load_cluster("local:2x2"), options=OPTIONS)
    assert "fewer_devices" not in plan.document
    assert not repeats(plan.strategy)


def test_halves_are_tried_as_long_as_they_are_as_fast() -> None:
    plan = make_plan(capture("zoo:gpt2-demo"), load_cluster("local:2x2"), options=OPTIONS)
    times = {8: 0.8, 4: 0.805, 2: 0.9}
    seen = []

    def costs(step_s: float) -> Costs:
        return Costs(step_s, 0.1 * step_s, {"gradient_sync": 0.9 * step_s}, 0.0, 0.0, 0.0, 0, 0, {})

    def search(cluster: Cluster, _: object, options: PlanOptions) -> tuple[Strategy, Costs]:
        seen.append(cluster.num_devices)
        assert options.global_batch == 64
        return plan.strategy, costs(times[cluster.num_devices])

    found = fewer_devices((plan.strategy, costs(1.0)), load_cluster("piz-daint:16"), None, OPTIONS, search)
    assert found == {"num_devices": 4, "step_time_s": 0.805}
    assert seen == [8, 4, 2]
