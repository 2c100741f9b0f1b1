"""What other layouts of an op cost: the simulated steps of strategies that have them, and bounds of all that have."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from autosbp.api import LogicalGraph, Plan, PlanOptions, capture, load_cluster, make_plan, predict_costs, why
from autosbp.errors import InputError
from autosbp.search import SearchOptions
from autosbp.search._base import Edge, SearchProblem
from autosbp.search.bounds.work_bound import work_bound_s
from autosbp.search.solvers.elimination import min_marginals
from autosbp.search.solvers.exhaustive import exhaustive
from autosbp.search.why import MAX_OPS, CostedSignature, OpAlternatives

pytestmark = pytest.mark.integration

MESSAGE_BYTES = 25 * 2**20


@cache
def graph_of(name: str) -> LogicalGraph:
    return capture(f"zoo:{name}")


@cache
def plan_of(model: str, cluster: str, batch: int, stages: int = 1, limit: int | None = None) -> Plan:
    options = PlanOptions(batch, stages=stages, memory_limit_bytes=limit, baselines=())
    return make_plan(graph_of(model), load_cluster(cluster), None, options)


def of(found: tuple[OpAlternatives, ...]) -> OpAlternatives:
    (one,) = found
    return one


def test_min_marginals_are_the_optima_with_a_value_given() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        sizes = rng.integers(2, 5, size=5)
        pairs = [(u, v) for u in range(5) for v in range(u) if rng.random() < 0.5]
        unary = tuple(rng.random(size) for size in sizes)
        edges = tuple(Edge(u, v, rng.random((sizes[u], sizes[v]))) for u, v in pairs)
        memory = tuple(np.zeros(size, dtype=np.int64) for size in sizes)
        problem = SearchProblem(tuple("abcde"), unary, memory, edges)
        variable = int(rng.integers(5))
        found = min_marginals(problem, variable, lambda: None)
        for value in range(sizes[variable]):
            held = np.full(sizes[variable], np.inf)
            held[value] = unary[variable][value]
            given = tuple(held if at == variable else costs for at, costs in enumerate(unary))
            best = exhaustive(SearchProblem(problem.names, given, memory, edges), SearchOptions())
            assert found.least_s[value] == pytest.approx(best.cost_s, rel=1e-12)
            assert found.assignment(value) == best.assignment


@pytest.mark.some(2)
@pytest.mark.parametrize("op", ["linear_1", "relu_0", "linear_3"])
def test_no_plan_with_a_layout_pinned_takes_less_than_the_bound_of_its_alternatives(op: str) -> None:
    """It has the same stages, mesh, microbatch, storage and messages."""
    graph, cluster = graph_of("mlp-small"), load_cluster("local:2x2")
    options = PlanOptions(64, 64, bucket_bytes=MESSAGE_BYTES, baselines=())
    plan = make_plan(graph, cluster, None, replace(options, stages=1, storage="as_used"))
    found = of(why(graph, plan, op, most=1000))
    assert len(found.found) == found.num_signatures
    assert [each.step_time_s for each in found.found] == sorted(each.step_time_s for each in found.found)
    bounds: dict[str, float] = {}
    for each in found.found:
        layout = each.signature.rpartition("-> ")[2]
        bounds[layout] = min(each.bound_s, bounds.get(layout, math.inf))
    assert len(bounds) > 5
    for layout in list(bounds)[:8]:
        pinned = make_plan(graph, cluster, None, replace(options, pins={op: layout}))
        assert pinned.strategy.mesh == plan.strategy.mesh
        assert bounds[layout] <= pinned.document["step_time_s"] * (1 + 1e-9)


def test_without_links_that_matter_alternatives_are_proved_to_be_the_best() -> None:
    """Nothing moves beside a pass for so long that anybody waits: problems say what steps take."""
    graph, plan = graph_of("mlp-small"), plan_of("mlp-small", "local:1", 64)
    (found,) = of(why(graph, plan, "linear_1")).found
    assert found.chosen and found.gap == 0.0
    assert found.bound_s == pytest.approx(plan.document["step_time_s"], rel=1e-9)


@pytest.mark.parametrize("storage", ["use", None])
def test_where_problems_may_charge_more_than_a_step_takes_the_least_work_is_the_bound(storage: str | None) -> None:
    """Of parameters that are gathered for each use, or pinned apart from it."""
    graph, cluster = graph_of("mlp-small"), load_cluster("local:2x2")
    pins = {} if storage else {"layers.0.weight": "S0 -> B"}
    plan = make_plan(graph, cluster, None, PlanOptions(64, stages=1, storage=storage, pins=pins, baselines=()))
    size = plan.strategy.micro_batch
    least_s = work_bound_s(lambda _: graph.bind(batch=size), [size], 64, cluster, None)
    for each in of(why(graph, plan, "linear_2", most=4)).found:
        assert each.bound_s == least_s < each.step_time_s
        assert each.gap is not None and 0 < each.gap < 1


def test_where_nothing_bounds_a_layout_no_gap_is_told() -> None:
    """Of ops that were timed, and parameters that are gathered for each use."""
    graph, plan = graph_of("mlp-small"), plan_of("mlp-small", "local:2x2", 64)
    costs = predict_costs(graph, plan.strategy, plan.cluster)
    assert CostedSignature("B -> B", False, -math.inf, costs, plan.strategy, {}).gap is None
    assert CostedSignature("B -> B", False, costs.step_time_s, costs, plan.strategy, {}).gap == 0.0


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("model", "cluster", "stages", "op"),
    [
        ("gpt2-demo", "local:2x2", 1, "linear_3"),
        ("gpt2", "dgx-a100-40g:1", 1, "linear_30"),
        ("gpt2-demo", "local:2x2", 2, "linear_3"),
    ],
)
def test_alternatives_are_strategies_with_that_signature_costed_as_plans_are(
    model: str, cluster: str, stages: int, op: str
) -> None:
    graph, plan = graph_of(model), plan_of(model, cluster, 16, stages)
    found = of(why(graph, plan, op, most=3))
    own = [each for each in found.found if each.chosen]
    assert len(own) == 1
    assert own[0].signature == str(plan.strategy.signatures[op])
    assert own[0].step_time_s <= plan.document["step_time_s"]
    assert (own[0].step_time_s == plan.document["step_time_s"]) == (own[0].strategy == plan.strategy)
    for each in found.found:
        assert each.strategy is not None
        assert each.strategy.num_stages == stages
        assert str(each.strategy.signatures[op]) == each.signature
        assert each.costs == predict_costs(graph, each.strategy, plan.cluster)
        assert 0 < each.bound_s <= each.step_time_s
        for name, (old, new) in each.changes.items():
            assert old != new
            if name in each.strategy.signatures:
                assert (old, new) == (str(plan.strategy.signatures[name]), str(each.strategy.signatures[name]))


def test_alternatives_keep_to_the_memory_limit_or_say_what_they_need() -> None:
    graph = graph_of("mlp-small")
    free = plan_of("mlp-small", "local:2x2", 64)
    limit = round(0.9 * free.document["memory_bytes_per_device"])
    plan = plan_of("mlp-small", "local:2x2", 64, 1, limit)
    found = of(why(graph, plan, "linear_1", most=1000)).found
    assert all(each.costs.memory_bytes_per_device <= limit for each in found if each.costs is not None)
    refused = [each for each in found if each.costs is None]
    assert refused
    assert all(each.step_time_s == float("inf") and "memory_limit_bytes" in each.reason for each in refused)
    assert min(each.step_time_s for each in found) <= plan.document["step_time_s"]


def test_pinned_layouts_stay_so_in_every_alternative() -> None:
    graph, cluster = graph_of("mlp-small"), load_cluster("local:2x2")
    plan = make_plan(graph, cluster, None, PlanOptions(64, pins={"layers.0.weight": "S1 -> B"}, baselines=()))
    for each in of(why(graph, plan, "linear_2")).found:
        assert each.strategy is not None
        assert each.strategy.parameters["layers.0.weight"] == plan.strategy.parameters["layers.0.weight"]


def test_an_op_is_named_by_itself_by_a_parameter_or_by_a_pattern() -> None:
    graph, plan = graph_of("mlp-small"), plan_of("mlp-small", "local:2x2", 64)
    by_op, by_parameter = why(graph, plan, "linear_1", most=1), why(graph, plan, "layers.1.weight", most=1)
    assert by_op == by_parameter
    assert of(by_op).reads == ("layers.1.weight", "layers.1.bias")
    several = why(graph, plan, "layers.*.bias", most=1)
    assert [each.op for each in several] == ["linear_0", "linear_1", "linear_2", "linear_3"]


def test_names_graphs_and_calibrations_that_are_not_the_plans_are_refused() -> None:
    graph, plan = graph_of("mlp-small"), plan_of("mlp-small", "local:2x2", 64)
    with pytest.raises(InputError, match="why: 'linaer_1' .*linear_1"):
        why(graph, plan, "linaer_1")
    with pytest.raises(InputError, match="most"):
        why(graph, plan, "linear_1", most=0)
    with pytest.raises(InputError, match=f"at most {MAX_OPS} ops"):
        why(graph_of("gpt2-demo"), plan_of("gpt2-demo", "local:2x2", 16), "*")
    with pytest.raises(InputError, match="graph"):
        why(graph_of("gpt2-demo"), plan, "linear_1")
    document = {**plan.to_dict(), "provenance": {**plan.document["provenance"], "calibration_id": "cal-1"}}
    with pytest.raises(InputError, match="calibration: None .*cal-1"):
        why(graph, Plan(json.loads(json.dumps(document))), "linear_1")
