"""A small model on two devices, its plan, and its strategy space."""

from __future__ import annotations

import pytest

from autosbp.api import Cluster, LogicalGraph, Plan, PlanOptions, capture, load_cluster, make_plan
from autosbp.tuning.sampler import Sampler
from autosbp.tuning.strategy_space import StrategySpace

OPTIONS = PlanOptions(global_batch=8)


@pytest.fixture(scope="package")
def graph() -> LogicalGraph:
    return capture("zoo:mlp-small")


@pytest.fixture(scope="package")
def cluster() -> Cluster:
    return load_cluster("local:2")


@pytest.fixture(scope="package")
def plan(graph: LogicalGraph, cluster: Cluster) -> Plan:
    return make_plan(graph, cluster, None, OPTIONS)


@pytest.fixture(scope="package")
def space(graph: LogicalGraph) -> StrategySpace:
    """Of four devices, so that meshes have two axes and pipelines two sizes."""
    return StrategySpace(graph, load_cluster("local:2x2"), None, OPTIONS)


@pytest.fixture(scope="package")
def sampler(space: StrategySpace) -> Sampler:
    return Sampler(space)
