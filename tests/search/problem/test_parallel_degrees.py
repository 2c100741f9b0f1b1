"""Degrees of parallelism that are asked for are those of the plan, counted from its layouts alone."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from autosbp.api import LogicalGraph, PlanOptions, load_cluster, make_plan, predict_costs, why
from autosbp.errors import InfeasibleError, InputError
from autosbp.graph.ir import Ref
from autosbp.plan.plan import BUCKET_BYTES, Strategy
from benchmarks.regret.__main__ import AIM
from tests.search.plans import graph_of, planned

pytestmark = [pytest.mark.some(2), pytest.mark.integration]


def batch_axes(graph: LogicalGraph, strategy: Strategy) -> set[int]:
    """Mesh axes on which some op splits the batch."""
    batch = {
        Ref(name, index): {dim for dim, size in enumerate(meta.shape) if isinstance(size, str)}
        for name, metas in graph.metas.items()
        for index, meta in enumerate(metas)
    }
    return {
        axis
        for name, signature in strategy.signatures.items()
        for index, layout in enumerate(signature.outs)
        for axis, sbp in enumerate(layout)
        if sbp.is_split and sbp.dim in batch[Ref(name, index)]
    }


def parameter_axes(graph: LogicalGraph, strategy: Strategy) -> set[int]:
    """Mesh axes on which some op reads a split parameter."""
    return {
        axis
        for node in graph.nodes
        if node.name in strategy.signatures
        for ref, layout in zip(node.refs(), strategy.signatures[node.name].ins, strict=True)
        if ref.name in graph.parameter_names
        for axis, sbp in enumerate(layout)
        if sbp.is_split
    }


def degree(strategy: Strategy, axes: set[int]) -> int:
    return prod(strategy.mesh.axes[axis].size for axis in axes)


@pytest.mark.some(3)
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize(("data", "tensor"), [(1, 1), (2, 1), (1, 2), (None, 1), (1, None), (2, None), (None, 2)])
def test_the_plan_has_the_degrees_that_are_asked_for(data: int | None, tensor: int | None, stages: int) -> None:
    graph, plan = graph_of("gpt2-demo"), planned(data_parallel=data, tensor_parallel=tensor, stages=stages)
    strategy = plan.strategy
    assert strategy.num_stages == stages
    if data is not None:
        assert degree(strategy, batch_axes(graph, strategy)) == data
    if tensor is not None:
        assert degree(strategy, parameter_axes(graph, strategy)) == tensor
    asked = {"data_parallel": data, "tensor_parallel": tensor}
    kept = {name: plan.document["options"].get(name) for name in asked}
    assert kept == asked
    assert PlanOptions.from_dict(plan.document["options"]).to_dict() == plan.document["options"]


def test_every_op_that_can_splits_the_batch_over_all_devices() -> None:
    plan = planned(data_parallel=4, stages=1)
    for name, signature in plan.strategy.signatures.items():
        batched = any(isinstance(meta.shape[0], str) for meta in graph_of("gpt2-demo").metas[name] if meta.shape)
        assert not batched or str(signature.outs[0][0]) == "S0" == str(signature.outs[0][1])


GRID_GAPS = (0.003, 0.014, 0.0112)
"""Of 1, 2 and 4 times data parallelism: measured."""


def test_degrees_cost_hardly_less_than_none_and_all_of_them_no_more_than_megatron() -> None:
    graph, cluster = graph_of("gpt2-demo"), load_cluster("local:2x2")
    free = make_plan(graph, cluster, None, PlanOptions(16, stages=1, baselines=("data_parallel", "megatron"))).document
    grids = [planned(data_parallel=data, tensor_parallel=4 // data, stages=1).document for data in (1, 2, 4)]
    best = min(grid["step_time_s"] for grid in grids)
    assert free["step_time_s"] <= best * (1 + AIM)
    assert best <= free["baselines"]["megatron"]["step_time_s"] * (1 + 1e-9)
    assert all(free["lower_bound_s"] <= grid["step_time_s"] for grid in grids)
    assert [grid["gap"] <= gap for grid, gap in zip(grids, GRID_GAPS, strict=True)] == [True] * 3
    assert grids[-1]["step_time_s"] <= free["baselines"]["data_parallel"]["step_time_s"]


@pytest.mark.parametrize(("data", "gap"), [(1, 0.028), (2, 0.021), (4, 0.0391), (None, 0.019)])
def test_parameters_that_are_stored_as_used_are_read_as_they_are_stored(data: int | None, gap: float) -> None:
    asked: dict[str, Any] = {"stages": 1, "bucket_bytes": BUCKET_BYTES}
    graph, plan = graph_of("gpt2-demo"), planned(data_parallel=data, storage="as_used", **asked)
    strategy = plan.strategy
    for node in graph.nodes:
        if node.name in strategy.signatures:
            for ref, layout in zip(node.refs(), strategy.signatures[node.name].ins, strict=True):
                if ref.name in strategy.parameters and not any(sbp.is_partial for sbp in layout):
                    assert layout == strategy.parameters[ref.name]
    assert plan.document["gap"] <= gap
    if data == 4:
        baselines = make_plan(graph, plan.cluster, None, PlanOptions(16, **asked)).document["baselines"]
        assert plan.document["step_time_s"] == pytest.approx(baselines["data_parallel"]["step_time_s"], rel=1e-9)
    (found,) = why(graph, plan, "linear_3", most=2)
    assert [each.step_time_s for each in found.found if each.chosen] == [pytest.approx(plan.document["step_time_s"])]


def test_degrees_hold_where_a_level_has_to_be_told_apart() -> None:
    graph = graph_of("gpt2")
    plan = planned("gpt2", "dgx-a100-40g:2", global_batch=64, data_parallel=2, tensor_parallel=4, stages=2)
    strategy = plan.strategy
    assert degree(strategy, batch_axes(graph, strategy)) == 2
    assert degree(strategy, parameter_axes(graph, strategy)) == 4
    assert predict_costs(graph, strategy, plan.cluster).step_time_s == plan.document["step_time_s"]


CONTRADICTIONS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "more than the devices": ({"data_parallel": 4, "tensor_parallel": 2}, {"data_parallel=4", "tensor_parallel=2"}),
    "more than a stage has": ({"data_parallel": 2, "stages": 4, "storage": "use"}, {"data_parallel=2", "stages=4"}),
    "no product of axes": ({"data_parallel": 3, "stages": 1}, {"data_parallel=3"}),
    "less batch than devices": ({"data_parallel": 4, "global_batch": 2}, {"data_parallel=4"}),
    "a pin of what is forbidden": (
        {"tensor_parallel": 1, "pins": {"linear_0": "B,S2", "linear_4": "S0"}},
        {"tensor_parallel=1", "pins.linear_0=B,S2"},
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions_name_what_excludes_each_other(name: str) -> None:
    options, conflict = CONTRADICTIONS[name]
    with pytest.raises(InfeasibleError) as caught:
        planned(**options)
    assert set(caught.value.conflict) == conflict


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "4", 2**40])
@pytest.mark.parametrize("name", ["data_parallel", "tensor_parallel"])
def test_degrees_are_whole_numbers_from_1(name: str, value: object) -> None:
    with pytest.raises(InputError, match=name):
        PlanOptions.from_dict({name: value})


def test_alternatives_of_an_op_keep_the_degrees() -> None:
    graph, plan = graph_of("gpt2-demo"), planned(data_parallel=2, tensor_parallel=2, stages=1)
    (found,) = why(graph, plan, "linear_3")
    assert len(found.found) > 1
    assert [each.step_time_s for each in found.found if each.chosen] == [pytest.approx(plan.document["step_time_s"])]
    for each in found.found:
        assert each.strategy is not None
        assert degree(each.strategy, batch_axes(graph, each.strategy)) == 2


def test_the_same_constraints_give_the_same_bytes() -> None:
    options: dict[str, Any] = {"tensor_parallel": 2, "stages": 2, "pins": {"linear_0": "S2"}}
    assert planned(**options).to_dict() == planned(**options).to_dict()


def test_one_sample_is_none_that_data_parallelism_could_split() -> None:
    """Nor are copies of it data parallelism: all devices would do the same, and add it up."""
    graph, cluster = graph_of("gpt2-demo"), load_cluster("local:2x2")
    with pytest.raises(InfeasibleError):
        make_plan(graph, cluster, None, PlanOptions(global_batch=1, data_parallel=2, baselines=()))
    plan = make_plan(graph, cluster, None, PlanOptions(global_batch=1, baselines=("data_parallel", "megatron")))
    assert not plan.document["baselines"]["data_parallel"]["feasible"]
    assert plan.document["baselines"]["megatron"]["feasible"]
