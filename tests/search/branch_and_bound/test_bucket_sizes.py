"""Plans whose messages of gradients and parameters are of another size: more of them or fewer, and the best for each plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autosbp.api import PlanOptions, load_cluster, make_plan, predict_costs
from autosbp.costmodel.calibration import Calibration, CollectiveFit, Point
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.strategy_cost import evaluate
from autosbp.errors import InfeasibleError, InputError
from autosbp.plan.plan import BUCKET_BYTES
from autosbp.program.parameter_flow import parameter_flow
from autosbp.search import SEARCHERS, SearchOptions
from autosbp.search.branch_and_bound.bucket_sizes import BUCKET_SIZES, MIN_GAIN, bucket_sizes
from autosbp.search.problem.cost_weights import GATHER_PER_STEP, UNSHARDED
from autosbp.search.problem.pins import Pins
from autosbp.search.stages.layout_problems import LayoutProblems, OverlapWeights, PipelineStructure, SubproblemKey
from tests.search.plans import graph_of, planned

pytestmark = pytest.mark.integration

SMALL, LARGE = 2**17, 2**30


def test_smaller_messages_are_more_and_take_longer_one_after_another() -> None:
    asked: dict[str, Any] = {"cluster": "local:4", "stages": 1, "data_parallel": 4, "storage": UNSHARDED}
    usual, small = (planned(**asked, bucket_bytes=size) for size in (BUCKET_BYTES, SMALL))
    assert (usual.strategy.bucket_bytes, small.strategy.bucket_bytes) == (BUCKET_BYTES, SMALL)
    bound = graph_of("gpt2-demo").bind(batch=usual.strategy.micro_batch)
    fewer, more = (parameter_flow(bound, plan.strategy).buckets for plan in (usual, small))
    assert 1 <= len(fewer) < len(more)
    assert sent_s(small.document["breakdown"]) > sent_s(usual.document["breakdown"])
    assert "bucket_bytes" not in usual.document["strategy"]


def sent_s(parts: dict[str, float]) -> float:
    """All messages, hidden or not."""
    return parts["exposed_comm_s"] + parts["hidden_comm_s"]


@pytest.mark.parametrize("bucket_bytes", [SMALL, LARGE])
@pytest.mark.parametrize("storage", [UNSHARDED, GATHER_PER_STEP])
def test_no_strategy_with_messages_of_a_size_or_smaller_takes_less_than_search_charges(
    storage: str, bucket_bytes: int
) -> None:
    there = load_cluster("local:4")
    compute = ComputeModel(there.device)
    problems = LayoutProblems(
        graph_of("gpt2-demo"), NetworkModel(there), compute, global_batch=16, optimizer="adamw",
        pins=Pins({}, {}, {}), sizes=(bucket_bytes,),
    )  # fmt: skip
    for exposure in (OverlapWeights(), OverlapWeights(0.0, 1.0), OverlapWeights(1.0, 1.0)):
        layouts = problems.build(
            SubproblemKey(PipelineStructure(1, there.mesh()), 8, storage, overlap_weights=exposure), None
        )
        found = SEARCHERS["exact"](layouts.problem, SearchOptions())
        strategy = problems.strategy(layouts, found.assignment)
        assert strategy.bucket_bytes == bucket_bytes
        for size in (bucket_bytes, SMALL, 2**15):
            other = replace(strategy, bucket_bytes=size)
            costs = evaluate(problems.bound(8), other, problems.boxing(there.mesh()), compute)
            assert 0.0 < found.cost_s <= costs.step_time_s * (1 + 1e-9)


def test_bad_sizes_are_named() -> None:
    with pytest.raises(InputError, match="bucket_bytes"):
        PlanOptions.from_dict({"bucket_bytes": 0})


@pytest.mark.some(2)
@pytest.mark.parametrize("storage", [UNSHARDED, GATHER_PER_STEP])
@pytest.mark.parametrize(("model", "cluster"), [("gpt2-demo", "local:2x2"), ("gpt2", "dgx-a100-80g:1")])
def test_a_plan_has_messages_with_which_its_step_is_shortest_and_its_bound_is_of_all_sizes(
    model: str, cluster: str, storage: str
) -> None:
    graph, there = graph_of(model), load_cluster(cluster)
    plan = make_plan(graph, there, options=PlanOptions(64, 32, stages=1, storage=storage, baselines=()))
    costs = {
        size: predict_costs(graph, replace(plan.strategy, bucket_bytes=size), there)
        for size in (2**40, *BUCKET_SIZES, 2**15)
    }
    every_s = [each.exposed_comm_s + each.hidden_comm_s for each in costs.values()]
    assert every_s == sorted(every_s) and every_s[0] < every_s[-1], "larger messages take less one after another"
    least_s = min(costs[size].step_time_s for size in BUCKET_SIZES)
    assert plan.document["step_time_s"] == costs[plan.strategy.bucket_bytes].step_time_s <= least_s * (1 + MIN_GAIN)
    assert plan.document["lower_bound_s"] <= min(each.step_time_s for each in costs.values()) * (1 + 1e-9)


def test_one_message_of_all_gradients_leaves_nothing_to_run_beside_backward() -> None:
    """Why the largest messages, which take least one after another, are not always the best."""
    graph, there = graph_of("gpt2"), load_cluster("dgx-a100-80g:1")
    asked = PlanOptions(128, stages=1, data_parallel=8, storage=UNSHARDED, baselines=())
    strategy = make_plan(graph, there, options=asked).strategy
    usual, whole = (predict_costs(graph, replace(strategy, bucket_bytes=size), there) for size in (BUCKET_BYTES, 2**40))
    assert whole.exposed_comm_s + whole.hidden_comm_s < usual.exposed_comm_s + usual.hidden_comm_s
    assert whole.hidden_comm_s < 0.1 * usual.hidden_comm_s
    assert whole.step_time_s > 1.002 * usual.step_time_s


def test_where_memory_binds_a_plan_has_the_quickest_messages_with_which_it_fits() -> None:
    """Quicker than what fits with the usual ones; with those, where they are asked for, nothing does."""
    graph, there = graph_of("gpt2"), load_cluster("dgx-a100-80g:1")
    asked = PlanOptions(128, 16, stages=1, data_parallel=8, storage=UNSHARDED, recompute=0, baselines=())
    free = make_plan(graph, there, options=asked)
    assert free.strategy.bucket_bytes >= BUCKET_BYTES
    costs = {size: predict_costs(graph, replace(free.strategy, bucket_bytes=size), there) for size in BUCKET_SIZES}
    needs = {size: each.memory_bytes_per_device for size, each in costs.items()}
    limit = needs[BUCKET_SIZES[3]]
    assert needs[BUCKET_BYTES] > limit > needs[BUCKET_SIZES[-1]]
    tight = make_plan(graph, there, options=replace(asked, memory_limit_bytes=limit))
    assert tight.strategy.bucket_bytes == BUCKET_SIZES[3]
    assert tight.document["memory_bytes_per_device"] <= limit
    least_s = min(each.step_time_s for size, each in costs.items() if needs[size] <= limit)
    assert free.document["step_time_s"] < tight.document["step_time_s"] <= least_s * (1 + MIN_GAIN)
    assert free.document["lower_bound_s"] <= tight.document["lower_bound_s"] <= tight.document["step_time_s"]
    with pytest.raises(InfeasibleError):
        make_plan(graph, there, options=replace(asked, memory_limit_bytes=limit, bucket_bytes=BUCKET_BYTES))


def test_a_cluster_that_sends_small_messages_faster_has_one_size() -> None:
    there = load_cluster("local:4")
    points = (Point(1024, 1e-4, 1e-5, 5), Point(2**25, 1e-1, 1e-4, 5))
    usual = CollectiveFit("all_reduce", (4,), 1e-4, 1e-9, 0.99, 0.01, 0.1, points)
    bent = replace(usual, knots=((2**21, 4e-9),))
    sizes = [bucket_sizes(None, there, Calibration(there, "gloo", "relative", (fit,))) for fit in (usual, bent)]
    assert sizes == [BUCKET_SIZES, (BUCKET_BYTES,)]
    assert bucket_sizes(LARGE, there, None) == (LARGE,)
