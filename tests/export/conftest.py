"""Plans to export: a small GPT-2 on two nodes of two ranks, with both baselines. The link between the nodes is so slow
that Megatron's best grid splits layers inside a node."""

from __future__ import annotations

import pytest

from autosbp.cluster.spec import Cluster, load_cluster
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Plan
from autosbp.search.plan_options import PlanOptions
from autosbp.search.planner import make_plan
from autosbp.zoo import zoo_graph


@pytest.fixture(scope="package")
def graph() -> LogicalGraph:
    return zoo_graph("gpt2-demo")


@pytest.fixture(scope="package")
def cluster() -> Cluster:
    document = load_cluster("local:2x2").to_dict()
    outer, inner = document["levels"]
    return Cluster.from_dict({**document, "levels": [{**outer, "bandwidth_bytes_per_s": 1e8}, inner]})


@pytest.fixture(scope="package")
def plan(graph: LogicalGraph, cluster: Cluster) -> Plan:
    options = PlanOptions(global_batch=16, micro_batch=8, baselines=("data_parallel", "megatron"))
    return make_plan(graph, cluster, options=options)
