"""``discover_rules``: which nodes get a rule, what they share, and what is said where nothing can be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from autosbp.api import PlanOptions, load_cluster, make_plan
from autosbp.discovery import _graph_rules as discovery_graph
from autosbp.discovery import discover_rules
from autosbp.executor import comm_ops
from autosbp.executor.lowering import compile_disabled, lower
from autosbp.graph.capture import capture
from autosbp.graph.discovered_rules import DiscoveredRule
from autosbp.graph.ir import LogicalGraph, Node
from tests.discovery import library
from tests.discovery.models import shop

Tensor = torch.Tensor


class Weighted(nn.Module):
    def __init__(self, body: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(24, 12))
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x, self.weight).square().mean()


def captured(body: Callable[[Tensor, Tensor], Tensor]) -> LogicalGraph:
    return capture(Weighted(body), {"x": torch.zeros(4, 6, 12)}, name="weighted")


def found(body: Callable[[Tensor, Tensor], Tensor]) -> LogicalGraph:
    return discover_rules(captured(body), use_cache=False)


def custom(graph: LogicalGraph) -> list[Node]:
    return [node for node in graph.nodes if node.op.startswith("shop.")]


def test_alike_nodes_share_a_rule_and_others_have_their_own() -> None:
    def body(x: Tensor, weight: Tensor) -> Tensor:
        y = x @ weight.t()
        for heads in (6, 4, 6):
            y = library.rotary(y, x.new_ones(6, 12 // heads), x.new_ones(6, 12 // heads), heads)
        return y

    graph = found(body)
    assert [node.rule for node in custom(graph)] == [
        "shop.rotary.default", "shop.rotary.default/2", "shop.rotary.default"
    ]  # fmt: skip
    assert list(graph.rules) == ["shop.rotary.default", "shop.rotary.default/2"]


def test_discovery_runs_once_and_only_if_needed() -> None:
    graph = shop()
    assert discover_rules(graph) == graph
    plain = captured(lambda x, weight: x @ weight.t())
    assert discover_rules(plain) is plain


def test_an_op_of_aten_without_a_rule_is_discovered_too() -> None:
    (rule,) = found(lambda x, weight: torch.cdist(x @ weight.t(), weight.t())).rules.values()
    layouts = {f"{' '.join(option.ins)} -> {' '.join(option.outs)}" for option in rule.options}
    assert layouts == {"S0 B -> S0", "S1 B -> S1", "B S0 -> S2"}


def test_an_op_whose_library_is_not_here_stays_replicated_and_says_so() -> None:
    graph = captured(lambda x, weight: library.sort_mix(x @ weight.t()))
    nodes = tuple(
        replace(node, op="store.mix.default") if node.op.startswith("shop.") else node for node in graph.nodes
    )
    (rule,) = discover_rules(replace(graph, nodes=nodes)).rules.values()
    assert rule.options == ()
    assert rule.reason.startswith("cannot be run on this machine: op: 'store.mix.default' is invalid")


def test_an_op_that_fails_on_some_samples_stays_replicated_and_says_why() -> None:
    (rule,) = found(lambda x, weight: library.distinct(x @ weight.t())).rules.values()
    assert rule.options == ()
    assert "values that differ are expected" in rule.reason


@pytest.mark.parametrize("trained", [True, False])
def test_a_random_op_draws_alike_on_replicas(trained: bool) -> None:
    """Whether it depends on a parameter or makes data."""

    def body(x: Tensor, weight: Tensor) -> Tensor:
        return library.jitter(x @ weight.t()) if trained else library.jitter(x) @ weight.t()

    graph = found(body)
    assert graph.rules == {"shop.jitter.default": DiscoveredRule((), "draws random numbers", random=True)}
    plan = make_plan(graph, load_cluster("local:2"), None, PlanOptions(global_batch=8))
    strategy = plan.strategy
    program = lower(graph.bind(batch=strategy.micro_batch), strategy, 0)
    (call,) = (node for node in program.graph.nodes if node.target is compile_disabled(comm_ops.run_random_op))
    assert call.args[0] is torch.ops.shop.jitter.default


def test_custom_ops_that_make_data_need_no_rule() -> None:
    graph = found(lambda x, weight: library.sort_mix(x) @ weight.t())
    assert graph.rules == {}
    assert [node.rule for node in custom(graph)] == [""]


def test_the_representative_batch_divides_no_other_size() -> None:
    """It would be taken for that size, or a part of it."""
    ids = {"x": torch.zeros(4, 6, 37 * 41)}
    module = Weighted(lambda x, weight: library.sort_mix(x[..., :12] @ weight.t()))
    assert discovery_graph._batch(capture(module, ids, name="wide")) == 43
