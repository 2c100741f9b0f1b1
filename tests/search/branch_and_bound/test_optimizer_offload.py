"""Plans whose optimizer state is on the hosts: only where that is asked for and worth it, at no less than search charges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autosbp.api import PlanOptions, load_cluster, make_plan
from autosbp.cluster.spec import Cluster, Host
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.offload import host_bytes
from autosbp.costmodel.strategy_cost import evaluate
from autosbp.errors import InfeasibleError, InputError
from autosbp.plan.plan import Plan, Strategy
from autosbp.search import SEARCHERS, SearchOptions
from autosbp.search.problem.cost_weights import GATHER_PER_STEP
from autosbp.search.problem.pins import Pins
from autosbp.search.stages.layout_problems import LayoutProblems, PipelineStructure, SubproblemKey
from tests.search.plans import graph_of, planned

pytestmark = pytest.mark.integration

TIGHT = 45_000_000
LEAST: dict[str, Any] = {"model": "mlp-small", "memory_limit_bytes": 2_000_000, "recompute": 0}
"""Less than any strategy takes whose state is on devices, 2,138,500 bytes."""
SLOW = Host(1e6, 1e6, 2**40)


def on(host: Host | None) -> Cluster:
    return replace(load_cluster("local:2x2"), host=host)


def planned_on(host: Host | None, model: str = "gpt2-demo", **asked: object) -> Plan:
    options = PlanOptions.from_dict({"global_batch": 8, "stages": 1, "baselines": [], "offload": True, **asked})
    return make_plan(graph_of(model), on(host), None, options)


def test_state_stays_on_devices_unless_asked_for() -> None:
    asked: dict[str, Any] = {"cluster": "local:2x2", "global_batch": 8, "stages": 1, "memory_limit_bytes": TIGHT}
    without, with_host = planned(**asked), planned(**asked, offload=True)
    assert not without.strategy.offload
    assert "offload" not in without.document["strategy"]
    assert with_host.strategy.offload
    assert with_host.document["step_time_s"] < without.document["step_time_s"]
    assert with_host.document["memory_breakdown"]["optimizer"] == 0
    assert with_host.document["memory_bytes_per_device"] <= TIGHT
    assert with_host.document["lower_bound_s"] <= with_host.document["step_time_s"]
    assert Strategy.from_dict(with_host.document["strategy"]).to_dict() == with_host.document["strategy"]


def test_a_slow_host_is_unused_if_memory_suffices() -> None:
    assert not planned_on(SLOW).strategy.offload


def test_no_strategy_takes_less_than_search_charges_nor_much_more() -> None:
    there = on(Host(2e9, 3e9, 2**40))
    graph, network, compute = graph_of("gpt2-demo"), NetworkModel(there), ComputeModel(there.device)
    problems = LayoutProblems(
        graph, network, compute, global_batch=16, optimizer="adamw", pins=Pins({}, {}, {}), offload=True
    )
    layouts = problems.build(SubproblemKey(PipelineStructure(1, there.mesh()), 8, GATHER_PER_STEP), None)
    found = SEARCHERS["exact"](layouts.problem, SearchOptions())
    strategy = problems.strategy(layouts, found.assignment)
    costs = evaluate(problems.bound(8), strategy, problems.boxing(there.mesh()), compute)
    assert strategy.offload
    assert 0.9 * costs.step_time_s < found.cost_s <= costs.step_time_s * (1 + 1e-9)
    on_device = evaluate(problems.bound(8), replace(strategy, offload=False), problems.boxing(there.mesh()), compute)
    held = host_bytes(graph.trained, strategy)
    assert (
        on_device.memory_bytes_per_device - costs.memory_bytes_per_device == on_device.memory["optimizer"] == held / 2
    )
    # Down and up once, and seven tensors touched: of four that the host holds.
    assert costs.optimizer_s == pytest.approx(held / 4 * (2 / 2e9 + 7 / 3e9), rel=1e-9)


@pytest.mark.long
def test_a_host_without_memory_does_not_make_plans_feasible() -> None:
    small = replace(SLOW, memory_bytes=1000)
    assert not planned_on(small, memory_limit_bytes=60_000_000).strategy.offload
    assert planned_on(SLOW, **LEAST).strategy.offload
    with pytest.raises(InfeasibleError):
        planned_on(small, **LEAST)


@pytest.mark.long
def test_what_just_fits_on_devices_is_found_where_the_hosts_are_slow() -> None:
    """Search, which adds memory up by op, finds nothing on devices alone; the leanest strategy fits at its fullest moment."""
    just = {**LEAST, "memory_limit_bytes": 2_138_500}
    alone, both = planned_on(None, **just, offload=False), planned_on(SLOW, **just)
    assert not both.strategy.offload
    assert both.document["step_time_s"] == alone.document["step_time_s"]


def test_bad_input_is_named() -> None:
    with pytest.raises(InputError, match="offload"):
        PlanOptions.from_dict({"offload": "yes"})
    with pytest.raises(InputError, match="describes no host"):
        planned_on(None)
    document = load_cluster("local:2x2").to_dict()
    with pytest.raises(InputError, match=r"host\.memory_bytes"):
        Cluster.from_dict({**document, "host": {**document["host"], "memory_bytes": 0}})
    assert Cluster.from_dict(document) == load_cluster("local:2x2")


def test_a_host_with_too_little_room_is_named_with_what_it_would_have_to_hold() -> None:
    """What fits on devices is offloaded, and what is not does not fit: neither is refused for the other's reason."""
    small = replace(SLOW, memory_bytes=2**20)
    with pytest.raises(InfeasibleError, match="dropping memory_limit_bytes=2000000 makes planning feasible") as caught:
        planned_on(small, **LEAST)
    assert (caught.value.constraint, caught.value.limit) == ("host.memory_bytes", 2**20)
    needed = caught.value.needed
    assert needed is not None
    assert planned_on(replace(small, memory_bytes=int(needed)), **LEAST).strategy.offload
    with pytest.raises(InfeasibleError):
        planned_on(replace(small, memory_bytes=int(needed) - 1), **LEAST)
