"""What other layouts of an op cost is what a plan with that layout pinned takes."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

from autosbp.api import LogicalGraph, Plan, PlanOptions, capture, load_cluster, make_plan, predict_costs, why
from autosbp.errors import InputError
from autosbp.search import SearchOptions
from autosbp.search._base import Edge, SearchProblem
from autosbp.search.searchers.elimination import min_marginals
from autosbp.search.searchers.exhaustive import exhaustive
from autosbp.search.why import MAX_OPS, OpAlternatives


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
            assert found.assignments[value] == best.assignment


@pytest.mark.parametrize("op", ["linear_1", "relu_0", "linear_3"])
def test_each_alternative_takes_what_a_plan_with_its_layout_pinned_takes(op: str) -> None:
    graph, cluster = graph_of("mlp-small"), load_cluster("local:2x2")
    plan = make_plan(graph, cluster, None, PlanOptions(64, 64, stages=1, storage="as_used", baselines=()))
    found = of(why(graph, plan, op, most=1000))
    assert len(found.found) == found.num_signatures
    assert [each.step_time_s for each in found.found] == sorted(each.step_time_s for each in found.found)
    quickest: dict[str, float] = {}
    for each in found.found:
        assert each.gap == 0.0
        quickest.setdefault(each.signature.rpartition("-> ")[2], each.step_time_s)
    assert len(quickest) > 5
    for layout in list(quickest)[:8]:
        pinned = make_plan(graph, cluster, None, PlanOptions(64, 64, pins={op: layout}, baselines=()))
        if pinned.strategy.mesh == plan.strategy.mesh:
            assert quickest[layout] == pytest.approx(pinned.document["step_time_s"], rel=1e-9)


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
    assert own[0].step_time_s == pytest.approx(plan.document["step_time_s"], rel=1e-9)
    for each in found.found:
        assert each.strategy is not None
        assert each.strategy.num_stages == stages
        assert str(each.strategy.signatures[op]) == each.signature
        assert each.costs == predict_costs(graph, each.strategy, plan.cluster)
        assert each.bound_s <= each.step_time_s
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
    assert min(each.step_time_s for each in found) <= plan.document["step_time_s"] * (1 + 1e-9)


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
