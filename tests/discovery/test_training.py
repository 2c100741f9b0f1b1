"""Models with custom ops: captured, discovered, planned, and trained on virtual ranks equal to one device."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

import pytest

from autosbp.api import PlanOptions, load_cluster, load_graph, make_plan, op_keys
from autosbp.costmodel.memory import memory_bytes
from autosbp.graph.ir import Node
from autosbp.sbp.layout import local_shape
from autosbp.sbp.rules import node_options
from autosbp.testing.virtual_ops import check_option
from autosbp.testing.virtual_program import check_strategy
from tests.discovery.models import shop

pytestmark = pytest.mark.integration


def custom_nodes(mixes: bool) -> list[Node]:
    return [node for node in shop(mixes).bind(batch=6).nodes if node.op.startswith("shop.")]


@pytest.mark.parametrize("name", [node.name for node in custom_nodes(False)])
def test_every_layout_found_is_right_as_the_executor_runs_it(name: str) -> None:
    """Heads, too, of which a device then has fewer: an integer argument."""
    bound = shop().bind(batch=6)
    node = next(node for node in bound.nodes if node.name == name)
    options = node_options(bound, node)
    assert sum(option.divides for option in options) == 3
    for option, size in product(options, (2, 3)):
        if option.size % size == 0:
            check_option(bound, node, option, size)
    if "rotary" in name:
        assert [option.divided for option in options if option.divided] == [((3,),)]


@pytest.mark.some(3)
@pytest.mark.parametrize("mixes", [False, True], ids=["all split", "one replicated"])
@pytest.mark.parametrize(("searcher", "seed"), [("exact", 0), ("random", 1), ("random", 2), ("random", 3)])
def test_training_equals_one_device(mixes: bool, searcher: str, seed: int) -> None:
    graph = shop(mixes)
    options = PlanOptions(global_batch=8, searcher=searcher, seed=seed, stages=1, time_limit_s=5.0)
    plan = make_plan(graph, load_cluster("local:2x2"), None, options)
    check_strategy(graph, plan.strategy)
    if not mixes:
        assert plan.document["warnings"] == []
        return
    assert plan.document["warnings"] == [
        "shop.sort_mix.default (1 node) has no layout that splits its work: it is replicated on every device."
    ]
    signature = next(plan.strategy.signatures[node.name] for node in custom_nodes(mixes) if "sort_mix" in node.op)
    assert all(sbp.is_replicated for layout in (*signature.ins, *signature.outs) for sbp in layout)


def test_the_document_alone_is_enough_to_plan() -> None:
    graph = load_graph(shop().to_dict())
    assert graph == shop()
    one, two = (
        make_plan(model, load_cluster("local:2x2"), None, PlanOptions(global_batch=8)) for model in (graph, shop())
    )
    assert one.to_dict() == two.to_dict()
    stripped = load_graph({**shop().to_dict(), "rules": {}, "nodes": [
        {key: value for key, value in node.items() if key != "rule"} for node in shop().to_dict()["nodes"]
    ]})  # fmt: skip
    assert stripped.graph_hash != graph.graph_hash
    told = make_plan(stripped, load_cluster("local:2x2"), None, PlanOptions(global_batch=8)).document["warnings"]
    assert [sentence.split()[0] for sentence in told] == ["shop.rotary.default", "shop.swiglu.default"]
    assert all("was not run: it is replicated on every device." in sentence for sentence in told)


def test_the_work_of_an_op_is_counted_by_what_it_calls() -> None:
    rules = shop().rules
    gated = rules["shop.swiglu.default"]
    assert gated.flops == 4.0
    assert sorted(gated.sizes) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert rules["shop.rotary.default"].flops == 0.0


def test_what_autograd_keeps_is_part_of_the_predicted_memory() -> None:
    """``library`` keeps every tensor argument; of the first custom op all, of the second its activation, are activations."""
    assert {name: rule.saved for name, rule in shop().rules.items()} == {
        "shop.rotary.default": (0, 1, 2),
        "shop.swiglu.default": (0, 1, 2),
    }
    plan = make_plan(shop(), load_cluster("local:2"), None, PlanOptions(global_batch=8))
    bound = shop().bind(batch=plan.strategy.micro_batch)
    without = replace(bound, rules={name: replace(rule, saved=()) for name, rule in bound.rules.items()})
    more, less = (memory_bytes(graph, plan.strategy)["activations"] for graph in (bound, without))
    gated = plan.strategy.signatures[next(node.name for node in bound.nodes if "swiglu" in node.op)]
    assert more - less >= prod(local_shape((plan.strategy.micro_batch, 6, 24), gated.ins[0], plan.strategy.mesh)) * 8


def test_calibrations_time_the_ops_that_every_machine_has() -> None:
    keys = op_keys(shop(), load_cluster("local:2x2"), PlanOptions(global_batch=8))
    assert any('"aten.linear.default"' in key for key in keys)
    assert not any("shop." in key for key in keys)
