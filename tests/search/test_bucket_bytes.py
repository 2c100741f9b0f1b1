"""Plans whose messages of gradients are of another size: charged as executed, more of them or fewer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autosbp.api import PlanOptions, load_cluster, make_plan, predict_costs
from autosbp.costmodel.calibration import Calibration, CollectiveFit, Point
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.evaluate import evaluate
from autosbp.costmodel.network import NetworkModel
from autosbp.errors import InfeasibleError, InputError
from autosbp.plan import BUCKET_BYTES
from autosbp.sbp.parameters import parameter_flow
from autosbp.search import SEARCHERS, SearchOptions
from autosbp.search.problem.pinned import Pins
from autosbp.search.problem.weights import AS_USED, STEP
from autosbp.search.space.message_sizes import SMALLER, sizes_of
from autosbp.search.stages.layouts import LayoutProblems, Space, Structure
from tests.search.plans import graph_of, planned

SMALL, LARGE = 2**17, 2**30


def test_smaller_messages_are_more_and_take_longer() -> None:
    asked: dict[str, Any] = {"cluster": "local:4", "stages": 1, "data_parallel": 4, "storage": AS_USED}
    usual, small = planned(**asked), planned(**asked, bucket_bytes=SMALL)
    assert (usual.strategy.bucket_bytes, small.strategy.bucket_bytes) == (BUCKET_BYTES, SMALL)
    bound = graph_of("gpt2-demo").bind(batch=usual.strategy.micro_batch)
    fewer, more = (parameter_flow(bound, plan.strategy).buckets for plan in (usual, small))
    assert 1 <= len(fewer) < len(more)
    assert small.document["step_time_s"] > usual.document["step_time_s"]
    assert small.document["gap"] == usual.document["gap"] == 0.0
    assert "bucket_bytes" not in usual.document["strategy"]


@pytest.mark.parametrize("bucket_bytes", [SMALL, LARGE])
@pytest.mark.parametrize("storage", [AS_USED, STEP])
def test_what_search_charges_is_what_the_strategy_is_charged(storage: str, bucket_bytes: int) -> None:
    there = load_cluster("local:4")
    compute = ComputeModel(there.device)
    problems = LayoutProblems(
        graph_of("gpt2-demo"), NetworkModel(there), compute, global_batch=16, optimizer="adamw",
        pins=Pins({}, {}, {}), sizes=(bucket_bytes,),
    )  # fmt: skip
    layouts = problems.build(Space(Structure(1, there.mesh()), 8, storage), None)
    found = SEARCHERS["exact"](layouts.problem, SearchOptions())
    strategy = problems.strategy(layouts, found.assignment)
    costs = evaluate(problems.bound(8), strategy, problems.boxing(there.mesh()), compute)
    assert strategy.bucket_bytes == bucket_bytes
    assert costs.step_time_s == pytest.approx(found.cost_s, rel=1e-9)
    usual = evaluate(
        problems.bound(8), replace(strategy, bucket_bytes=BUCKET_BYTES), problems.boxing(there.mesh()), compute
    )
    assert (costs.step_time_s > usual.step_time_s) == (bucket_bytes == SMALL)


def test_bad_sizes_are_named() -> None:
    with pytest.raises(InputError, match="bucket_bytes"):
        PlanOptions.from_dict({"bucket_bytes": 0})


@pytest.mark.parametrize("storage", [AS_USED, STEP])
@pytest.mark.parametrize(("model", "cluster"), [("gpt2-demo", "local:2x2"), ("gpt2", "dgx-a100-80g:1")])
def test_no_smaller_messages_take_less_in_the_sum_so_that_bounds_are_of_all_sizes(
    model: str, cluster: str, storage: str
) -> None:
    graph, there = graph_of(model), load_cluster(cluster)
    plan = make_plan(graph, there, options=PlanOptions(64, 32, stages=1, storage=storage, baselines=()))
    steps = [
        predict_costs(graph, replace(plan.strategy, bucket_bytes=size), there).step_time_s
        for size in (2**40, 100 * 2**20, BUCKET_BYTES, *SMALLER, 2**15)
    ]
    assert steps == sorted(steps) and steps[0] < steps[-1]
    assert plan.document["lower_bound_s"] <= steps[2] * (1 + 1e-9)


def test_one_message_of_all_gradients_leaves_nothing_to_run_beside_backward() -> None:
    """Why sizes above 25 MiB, which the sum would take without end, are left to those who ask for them."""
    graph, there = graph_of("gpt2"), load_cluster("dgx-a100-80g:1")
    asked = PlanOptions(128, stages=1, data_parallel=8, storage=AS_USED, baselines=())
    strategy = make_plan(graph, there, options=asked).strategy
    usual, whole = (predict_costs(graph, replace(strategy, bucket_bytes=size), there) for size in (BUCKET_BYTES, 2**40))
    assert whole.step_time_s < usual.step_time_s
    assert whole.simulated_step_time_s > 1.002 * usual.simulated_step_time_s


def test_where_memory_binds_a_plan_has_the_largest_messages_with_which_it_fits() -> None:
    """Quicker than what fits with the usual ones; without the limit, or with one that is asked for, nothing changes."""
    graph, there = graph_of("gpt2"), load_cluster("dgx-a100-80g:1")
    asked = PlanOptions(128, 16, stages=1, data_parallel=8, storage=AS_USED, recompute=0, baselines=())
    free = make_plan(graph, there, options=asked)
    assert free.strategy.bucket_bytes == BUCKET_BYTES
    needs = {
        size: predict_costs(graph, replace(free.strategy, bucket_bytes=size), there).memory_bytes_per_device
        for size in (BUCKET_BYTES, *SMALLER)
    }
    assert needs[BUCKET_BYTES] > needs[SMALLER[0]]
    limit = needs[SMALLER[0]]
    tight = make_plan(graph, there, options=replace(asked, memory_limit_bytes=limit))
    assert tight.strategy.bucket_bytes == SMALLER[0]
    assert tight.document["memory_bytes_per_device"] <= limit
    assert free.document["step_time_s"] < tight.document["step_time_s"] < 1.01 * free.document["step_time_s"]
    assert free.document["lower_bound_s"] <= tight.document["lower_bound_s"] <= tight.document["step_time_s"]
    with pytest.raises(InfeasibleError):
        make_plan(graph, there, options=replace(asked, memory_limit_bytes=limit, bucket_bytes=BUCKET_BYTES))


def test_a_cluster_that_sends_small_messages_faster_has_one_size() -> None:
    there = load_cluster("local:4")
    points = (Point(1024, 1e-4, 1e-5, 5), Point(2**25, 1e-1, 1e-4, 5))
    usual = CollectiveFit("all_reduce", (4,), 1e-4, 1e-9, 0.99, 0.01, 0.1, points)
    bent = replace(usual, knots=((2**21, 4e-9),))
    sizes = [sizes_of(None, there, Calibration(there, "gloo", "relative", (fit,))) for fit in (usual, bent)]
    assert sizes == [(BUCKET_BYTES, *SMALLER), (BUCKET_BYTES,)]
    assert sizes_of(LARGE, there, None) == (LARGE,)
