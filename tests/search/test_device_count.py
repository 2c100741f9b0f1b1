"""Plans use all devices, and say when some of them would do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autosbp.api import Plan, PlanOptions, capture, capture_hf_config, load_cluster, make_plan
from autosbp.cluster.spec import Cluster
from autosbp.graph.dtype_cast import cast_floats
from autosbp.plan.plan import Costs, Strategy
from autosbp.report.findings import findings
from autosbp.search.device_count import fewer_devices

pytestmark = pytest.mark.integration

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


def test_compute_bound_plans_do_not_search_fewer_devices() -> None:
    plan = make_plan(capture("zoo:gpt2-demo"), load_cluster("local:2x2"), options=OPTIONS)
    assert "fewer_devices" not in plan.document


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

    found = fewer_devices(
        (plan.strategy, costs(1.0)), load_cluster("piz-daint:16"), None, OPTIONS, search, lambda _: 0.0
    )
    assert found == {"num_devices": 4, "step_time_s": 0.805}
    assert seen == [8, 4, 2]
    seen.clear()
    found = fewer_devices((plan.strategy, costs(1.0)), load_cluster("piz-daint:16"), None, OPTIONS, search,
                          lambda cluster: 8 / cluster.num_devices)  # fmt: skip
    assert found == {"num_devices": 8, "step_time_s": 0.8}
    assert seen == [8]


def test_a_batch_too_small_for_two_nodes_says_first_that_one_does() -> None:
    """Computation takes most of the step, but two nodes compute no faster."""
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 768, "n_head": 12, "vocab_size": 8192}
    graph = cast_floats(capture_hf_config(config, seq_len=1024), "float32", "bfloat16")
    plan = make_plan(graph, load_cluster("aws-p4d:2"), options=PlanOptions(global_batch=8, baselines=(), stages=1))
    assert plan.document["breakdown"]["compute_s"] > 0.5 * plan.document["step_time_s"]
    said = findings(plan.document)
    assert plan.document["fewer_devices"]["num_devices"] <= 8
    assert "of 16 devices are sufficient" in said[0]
    assert not any("more devices" in sentence for sentence in said)
