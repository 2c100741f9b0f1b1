"""Plans to export: a small GPT-2 on two nodes of two ranks, with both baselines."""

from __future__ import annotations

import pytest

from autosbp.cluster import load_cluster
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Plan
from autosbp.search.plan_options import PlanOptions
from autosbp.search.planner import make_plan
from autosbp.zoo import zoo_graph


@pytest.fixture(scope="package")
def graph() -> LogicalGraph:
    return zoo_graph("gpt2-demo")


@pytest.fixture(scope="package")
def plan(graph: LogicalGraph) -> Plan:
    return make_plan(graph, load_cluster("local:2x2"), options=PlanOptions(global_batch=16, micro_batch=8))
