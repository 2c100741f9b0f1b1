"""Discovery, without the rules, finds exactly the layouts that the rules offer: the test of both."""

from __future__ import annotations

from math import gcd

import pytest

from autosbp.discovery._graph_rules import node_call
from autosbp.discovery._search import discover_call
from autosbp.graph.ir import LogicalGraph, Node, Ref
from autosbp.sbp.factor_notation import AxisOption, axis_options, tensor_inputs
from autosbp.sbp.rules import node_options
from autosbp.testing.virtual_cases import CASES, op_case
from tests.discovery.left_out import LEFT_OUT

pytestmark = pytest.mark.integration


def text(option: AxisOption) -> str:
    return f"{' '.join(map(str, option.ins))} -> {' '.join(map(str, option.outs))}"


def divisible(graph: LogicalGraph, node: Node, option: AxisOption) -> bool:
    """Whether 2 or 3 devices can take the option, as discovery tries."""
    extent = option.size
    for sbp, meta in zip((*option.ins, *option.outs), (*tensor_inputs(graph, node), *node.outputs), strict=True):
        if sbp.is_split:
            extent = gcd(extent, meta.sizes[sbp.dim])
    return extent % 2 == 0 or extent % 3 == 0


@pytest.mark.parametrize("op", CASES)
def test_discovery_finds_what_the_rule_offers_and_no_more(op: str) -> None:
    """Split implementations run another program than the op: they may be found, and need not. What the rule leaves out
    on purpose is listed with its reason, and must be found for some case."""
    left_out = LEFT_OUT.get(op, ("", frozenset()))[1]
    unseen = set(left_out)
    for case in CASES[op]:
        graph, node = op_case(op, case)
        offered = [option for option in node_options(graph, node) if divisible(graph, node, option)]
        found = discover_call(node_call(graph, node))
        assert found.complete
        ins = tuple(graph.has_gradient(ref) for ref in node.refs())
        outs = tuple(graph.has_gradient(Ref(node.name, index)) for index in range(len(node.outputs)))
        layouts = {text(option): option for option in axis_options(found.sharding, ins, outs)}
        unseen -= set(layouts)
        missed = {text(option) for option in offered if not option.needs_split_impl} - set(layouts)
        assert not missed, f"{case}: the rule offers {missed}; discovery does not find it ({found.reason})"
        more = set(layouts) - {text(option) for option in offered} - left_out
        assert not more, f"{case}: the rule lacks {more}"
        for option in offered:
            alike = layouts.get(text(option))
            if alike is not None and not option.needs_split_impl and option.factor not in ("B", "I", "P"):
                assert (alike.size, alike.divides) == (option.size, option.divides), text(option)
    assert not unseen, f"{unseen} is listed as left out and was not found"


def test_every_left_out_layout_is_of_an_op_that_has_a_rule() -> None:
    assert set(LEFT_OUT) <= set(CASES)
    assert all(reason for reason, _ in LEFT_OUT.values())
