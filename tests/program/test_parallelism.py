"""Degrees, storage and deviations of strategies, and their words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autosbp.api import Plan, PlanOptions, load_cluster, make_plan
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Strategy
from autosbp.program.parallelism import parallelism_of
from autosbp.program.strategy_name import strategy_name
from autosbp.zoo import zoo_graph

BASELINES = ("data_parallel", "zero1", "zero2", "zero3", "megatron_sp")


@pytest.fixture(scope="module")
def graph() -> LogicalGraph:
    return zoo_graph("gpt2-demo")


@pytest.fixture(scope="module")
def plan(graph: LogicalGraph) -> Plan:
    options = PlanOptions(
        **{"global_batch": 16, "micro_batch": 8, "stages": 1, "grid": "megatron_sp", "tensor_parallel": 2},
        storage="as_used",
        baselines=BASELINES,
    )
    return make_plan(graph, load_cluster("local:4"), None, options)


def name_of(graph: LogicalGraph, strategy: Strategy, precision: str | None = None, **changes: Any) -> str:
    strategy = replace(strategy, **changes)
    return strategy_name(strategy, parallelism_of(graph, strategy), precision)


@pytest.mark.parametrize(
    ("baseline", "words"),
    [
        ("data_parallel", "data parallel x 4, no pipeline"),
        ("zero2", "ZeRO-2 x 4, no pipeline"),
        ("zero3", "ZeRO-3 x 4, no pipeline"),
    ],
)
def test_baselines_have_the_names_of_the_field(plan: Plan, graph: LogicalGraph, baseline: str, words: str) -> None:
    assert name_of(graph, plan.baseline_strategy(baseline)) == words


def test_sums_over_microbatches_make_zero_2_to_zero_1(plan: Plan, graph: LogicalGraph) -> None:
    zero2 = plan.baseline_strategy("zero2")
    assert name_of(graph, zero2, global_batch=2 * zero2.micro_batch).startswith("ZeRO-1 x 4")


def test_tensor_parallel_ranks_precision_and_offloading_are_named(plan: Plan, graph: LogicalGraph) -> None:
    words = name_of(graph, plan.strategy, "bf16-mixed", offload=True)
    assert "tensor parallel x 2" in words and words.endswith("no pipeline, optimizer state on the host, bf16-mixed")
    assert plan.document["strategy_summary"] == name_of(graph, plan.strategy)


def test_an_op_that_is_split_otherwise_is_a_deviation(plan: Plan, graph: LogicalGraph) -> None:
    base = plan.baseline_strategy("data_parallel")
    head = next(node for node in reversed(graph.nodes) if node.op == "aten.linear.default")
    other = plan.strategy.signatures[head.name]
    assert len(other.ins[0]) == len(base.signatures[head.name].ins[0]) + 1  # a mesh of two axes
    mesh = plan.strategy.mesh
    signatures = {
        name: replace(each, ins=tuple((*one, *one) for one in each.ins), outs=tuple((*one, *one) for one in each.outs))
        for name, each in base.signatures.items()
    }
    parameters = {name: (*layout, *layout) for name, layout in base.parameters.items()}
    mixed = replace(base, mesh=mesh, signatures={**signatures, head.name: other}, parameters=parameters)
    found = parallelism_of(graph, mixed)
    assert found.roles == ("data", "data") and found.data == 4
    assert head.name in {each.name for each in found.deviations}
    assert head.name in name_of(graph, mixed)


def test_every_parameter_that_could_be_stored_like_the_others_is_compared(plan: Plan, graph: LogicalGraph) -> None:
    zero = plan.baseline_strategy("zero3")
    assert not parallelism_of(graph, zero).deviations
    name = next(leaf.name for leaf in graph.parameters if zero.parameters[leaf.name][0].is_split)
    whole = tuple(type(sbp)("B") for sbp in zero.parameters[name])
    found = parallelism_of(graph, replace(zero, parameters={**zero.parameters, name: whole}))
    assert [each.name for each in found.deviations] == [name]
