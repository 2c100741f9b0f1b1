"""Builders of synchronization strategies, and the choice among them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from autosbp.api import LogicalGraph, PlanOptions, capture, load_cluster, make_plan
from autosbp.errors import InputError
from autosbp.plan.plan import Plan, Strategy
from autosbp.program.parameter_flow import parameter_flow
from autosbp.search.sync_builders import BUILDERS, builder_named, nodes_of_replicas, variables, with_sync
from autosbp.search.sync_search import SyncSearch, with_builder

CLUSTER = load_cluster("local:2x2")


@pytest.fixture(scope="module")
def graph() -> LogicalGraph:
    return capture("zoo:wide-deep-small")


@pytest.fixture(scope="module")
def plan(graph: LogicalGraph) -> Plan:
    options = PlanOptions(global_batch=16, stages=1, baselines=("data_parallel",))
    return make_plan(graph, CLUSTER, None, options).with_baseline("data_parallel")


@pytest.fixture(scope="module")
def strategy(plan: Plan) -> Strategy:
    return plan.strategy


def test_chunks_merge_that_many_adjacent_variables(graph: LogicalGraph, strategy: Strategy) -> None:
    sync = with_sync(graph, strategy, CLUSTER, "all_reduce", 4).sync
    assert sync is not None
    sizes = Counter(one.groups[0] for one in sync.parameters.values())
    assert [sizes[group] for group in sorted(sizes)] == [4, 4, 4, 2]
    buckets = parameter_flow(graph.bind(batch=16), with_sync(graph, strategy, CLUSTER, "all_reduce", 4)).buckets
    assert sorted(len(bucket.names) for bucket in buckets) == [2, 4, 4, 4]


def test_default_buckets_of_distributed_data_parallel_are_torchs(strategy: Strategy) -> None:
    graph = capture("zoo:mlp-small")
    plain = make_plan(graph, CLUSTER, None, PlanOptions(global_batch=16, stages=1, baselines=("data_parallel",)))
    found = with_sync(graph, plain.baseline_strategy("data_parallel"), CLUSTER, "ddp").sync
    assert found is not None
    last_first = list(reversed(found.parameters))
    tensors = [torch.empty(graph.metas[name][0].sizes) for name in last_first]
    wanted, _ = torch.distributed._compute_bucket_assignment_by_size(tensors, [2**20, 25 * 2**20])
    groups = [found.parameters[name].groups[0] for name in last_first]
    assert [groups[members[0]] for members in wanted] == list(range(len(wanted)))
    assert [groups.count(group) for group in range(len(wanted))] == [len(members) for members in wanted]


def test_balanced_servers_differ_by_less_than_the_largest_variable(graph: LogicalGraph, strategy: Strategy) -> None:
    found = variables(graph, strategy)
    sync = with_sync(graph, strategy, CLUSTER, "ps_balanced").sync
    assert sync is not None
    nodes = nodes_of_replicas(strategy.mesh, (0, 1))
    loads = Counter[int]()
    for each in found:
        loads[nodes[sync.parameters[each.name].destinations[0]]] += each.num_bytes
    assert max(loads.values()) - min(loads.values()) <= max(each.num_bytes for each in found)


def test_parallax_gives_lookups_to_servers_and_all_reduces_the_rest(graph: LogicalGraph, strategy: Strategy) -> None:
    sync = with_sync(graph, strategy, CLUSTER, "parallax").sync
    assert sync is not None
    for name, one in sync.parameters.items():
        looked_up = name.startswith(("tables", "wide"))
        assert (one.synchronizer == "parameter_server") == bool(one.sparse_rows) == looked_up


def test_unknown_builders_and_chunks_are_refused(graph: LogicalGraph, strategy: Strategy) -> None:
    with pytest.raises(InputError, match="parallax"):
        builder_named("gossip")
    for name, chunk in (("ddp", 4), ("all_reduce", 0)):
        with pytest.raises(InputError, match="chunk"):
            with_sync(graph, strategy, CLUSTER, name, chunk)


def test_auto_is_no_slower_than_any_builder(graph: LogicalGraph, plan: Plan) -> None:
    search = SyncSearch(graph, plan.strategy, CLUSTER, None)
    built = {label: search.step_s(each) for label, each in search.built()}
    assert {label.split()[0] for label in built} == {"default", *BUILDERS}
    assert with_builder(plan, graph, None, "auto").document["step_time_s"] <= min(built.values()) * (1 + 1e-9)


def test_a_plan_takes_a_builder_with_costs_of_its_own(graph: LogicalGraph, plan: Plan) -> None:
    served = with_builder(plan, graph, None, "ps", 2)
    assert served.strategy.sync is not None
    assert served.plan_id != plan.plan_id and Plan.from_dict(served.to_dict()).plan_id == served.plan_id
    assert served.document["lower_bound_s"] is None and served.document["searcher"] == "builder ps 2"
    assert served.document["step_time_s"] != plan.document["step_time_s"]


def test_transfer_stations_need_nodes_with_several_replicas(graph: LogicalGraph, strategy: Strategy) -> None:
    flat = load_cluster("local:4")
    one = make_plan(graph, flat, None, PlanOptions(global_batch=16, stages=1, baselines=("data_parallel",)))
    sync = with_sync(graph, one.baseline_strategy("data_parallel"), flat, "ps_hierarchical").sync
    assert sync is not None and all(not each.order for each in sync.parameters.values())
    deep = with_sync(graph, strategy, CLUSTER, "ps_hierarchical").sync
    assert deep is not None and all(each.order == (("g0",), ("n0",)) for each in deep.parameters.values())
    assert replace(strategy, sync=deep) != strategy
