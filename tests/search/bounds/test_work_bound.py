"""Work dealt out evenly bounds every strategy, costs next to nothing to know, and so every plan has a bound."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import nn

from autosbp.api import Cluster, PlanOptions, capture_module, load_cluster, make_plan, predict_costs
from autosbp.costmodel.compute import ComputeModel
from autosbp.plan.schedules import GPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE, Schedule
from autosbp.report.findings import certificate, findings
from autosbp.sbp.rules import sharding_of
from autosbp.search.bounds.work_bound import _balanced_step_s, is_work_proportional, work_bound_s
from autosbp.search.plan_options import GAP_TOLERANCE
from autosbp.search.planner import Planner
from autosbp.testing.strategy_samples import sample_strategies
from tests.search.branch_and_bound.test_microbatch_sizes import timed
from tests.search.branch_and_bound.test_unlike_groups import mixed
from tests.search.plans import graph_of, planned

pytestmark = pytest.mark.integration

BATCH = 16


def bound_of(model: str, cluster: Cluster, batch: int = BATCH) -> float:
    return work_bound_s(lambda size: graph_of(model).bind(batch=size), [batch], batch, cluster, None)


def without_launches(name: str) -> Cluster:
    cluster = load_cluster(name)
    return replace(cluster, device=replace(cluster.device, op_overhead_s=0.0))


@pytest.mark.parametrize(
    "model", ["mlp-small", "gpt2-demo", "wide-deep-small", "moe-small", "resnet50-small", "llama-demo"]
)
def test_of_one_device_it_is_all_but_the_launches(model: str) -> None:
    cluster = without_launches("local:1")
    plan = make_plan(graph_of(model), cluster, None, PlanOptions(global_batch=BATCH, micro_batch=BATCH, baselines=()))
    assert bound_of(model, cluster) == pytest.approx(plan.document["step_time_s"], rel=1e-9)
    slower = bound_of(model, load_cluster("local:1"))
    assert slower == pytest.approx(bound_of(model, cluster), rel=1e-9)


@pytest.mark.parametrize("launches", [False, True])
@pytest.mark.parametrize("model", ["mlp-small", "gpt2-demo", "wide-deep-small"])
@pytest.mark.some(3)
def test_no_strategy_is_below_the_bound(model: str, launches: bool) -> None:
    cluster = load_cluster("local:2x2") if launches else without_launches("local:2x2")
    free = (replace(each, bandwidth_bytes_per_s=1e15, latency_s=1e-12) for each in cluster.levels)
    cluster = replace(cluster, levels=tuple(free))
    bound, steps = bound_of(model, cluster), []
    for micro_batch in (4, BATCH):
        found = sample_strategies(graph_of(model), cluster, 40, global_batch=BATCH, micro_batch=micro_batch)
        steps += [predict_costs(graph_of(model), each, cluster).step_time_s for each in found]
    assert len(steps) > 60 and min(steps) >= bound
    assert launches or min(steps) < 1.5 * bound


@pytest.mark.parametrize("schedule", [GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE])
@pytest.mark.some(2)
def test_no_pipeline_is_below_the_bound(schedule: Schedule) -> None:
    for stages in (2, 4):
        for recompute in (0, 1):
            plan = planned("gpt2-demo", stages=stages, schedules=(schedule.name,), recompute=recompute)
            assert plan.document["step_time_s"] > bound_of("gpt2-demo", load_cluster("local:2x2"))


def test_of_unlike_devices_it_is_no_more_than_the_best_way_to_deal_ops_out() -> None:
    """Ops that may be split at will: a linear program."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        taken, counts = rng.random((3, 6)) + 0.1, rng.integers(1, 5, 3).astype(float)
        shares = np.kron(np.eye(6), np.ones(3))  # of each op, by kind
        work = np.hstack([np.kron(taken.T.reshape(1, -1), np.ones((3, 1))) * np.tile(np.eye(3), 6), -counts[:, None]])
        best = linprog(
            [*[0.0] * 18, 1.0], A_ub=work, b_ub=[0.0] * 3, A_eq=np.hstack([shares, np.zeros((6, 1))]), b_eq=[1] * 6
        )
        assert 0 < _balanced_step_s(taken, counts) <= best.fun * (1 + 1e-9)
        alike = taken[:1] * np.array([[1.0], [2.0], [5.0]])
        assert _balanced_step_s(alike, counts) == pytest.approx(taken[0].sum() / (counts / [1, 2, 5]).sum())


def test_of_groups_it_is_between_those_of_their_devices() -> None:
    alike, quick = mixed(1.0), mixed(3.0)
    assert bound_of("gpt2-demo", quick) < bound_of("gpt2-demo", alike)
    plan = make_plan(graph_of("gpt2-demo"), quick, None, PlanOptions(global_batch=BATCH, baselines=()))
    assert bound_of("gpt2-demo", quick) <= plan.document["lower_bound_s"] <= plan.document["step_time_s"]


def test_there_is_no_work_bound_for_measured_ops() -> None:
    graph = graph_of("gpt2-demo").bind(batch=64)
    assert work_bound_s(lambda _: graph, [64], 64, load_cluster("local:4"), timed("local:4")) == float("-inf")


def test_arithmetic_and_bytes_are_those_of_the_graph() -> None:
    """On a device whose links to memory are as good as none, or as good as its arithmetic."""
    graph, cluster = graph_of("mlp-small").bind(batch=BATCH), without_launches("local:1")
    device = replace(cluster.device, memory_bandwidth_bytes_per_s=1e30, curves=None)
    model, flops = ComputeModel(device), Counter[str]()
    for node in graph.nodes:
        if node.name in graph.parameter_dependent:
            flops[node.outputs[0].dtype] += int(sharding_of(graph, node).flops)
    needed = sum(3 * count / model.flops_per_s(dtype) for dtype, count in flops.items())
    found = work_bound_s(lambda _: graph, [BATCH], BATCH, replace(cluster, device=device), None)
    assert found == pytest.approx(needed, rel=1e-6)


class Compared(nn.Module):
    """Every sample with every other: an eighth of the batch has a 64th of that to do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x)
        return torch.exp(-(hidden[:, None] - hidden[None]).pow(2).sum(-1)).mean()


def test_work_that_grows_faster_than_the_batch_is_bounded_at_every_microbatch() -> None:
    graph, cluster = capture_module(Compared(), {"x": torch.randn(6, 64)}, name="compared"), load_cluster("local:2x2")
    assert not is_work_proportional(lambda size: graph.bind(batch=size), [256, 1])
    options = PlanOptions(global_batch=256)
    planner = Planner(graph_of("moe-small"), load_cluster("local:2x2"), None, options, None)
    assert planner.baselines().search.relaxations.largest_microbatch_bounds_all
    assert is_work_proportional(lambda size: graph_of("moe-small").bind(batch=size), [256, 1])
    options = PlanOptions(global_batch=256, baselines=(), time_limit_s=100)
    free = make_plan(graph, cluster, None, options).document
    assert free["strategy"]["micro_batch"] == 256  # the model compares samples: fewer at a time are another loss
    assert free["lower_bound_s"] <= free["step_time_s"]
    for size in (256, 64, 16, 4):
        found = make_plan(graph, cluster, None, replace(options, micro_batch=size)).document
        assert found["lower_bound_s"] <= found["step_time_s"]


@pytest.mark.parametrize("searcher", ["random", "metropolis_hastings", "coordinate_descent", "exhaustive", "anytime"])
def test_plans_of_every_searcher_have_a_bound(searcher: str) -> None:
    graph, cluster = graph_of("mlp-small"), load_cluster("local:2")
    best = make_plan(graph, cluster, None, PlanOptions(global_batch=64)).document["step_time_s"]
    options = PlanOptions(global_batch=64, searcher=searcher, time_limit_s=3, baselines=())
    document = make_plan(graph, cluster, None, options).document
    assert 0 < document["lower_bound_s"] <= best * (1 + 1e-12) and 0 <= document["gap"] < 1
    assert "lower bound" in certificate(document) or document["gap"] == 0
    assert "longer time limit" not in " ".join(findings(document)) or searcher == "exhaustive"


def test_a_plan_stopped_immediately_has_a_bound_and_says_it_ended_early() -> None:
    graph, cluster = graph_of("bert-large"), load_cluster("dgx-a100-40g:4")
    document = make_plan(graph, cluster, None, PlanOptions(global_batch=1024), lambda *_: False).document
    assert document["ended_early"] is True and 0 < document["gap"] < 0.05
    assert "search was stopped early" in certificate(document)
    assert "A longer time limit may give a better plan and a tighter bound." in findings(document)


def test_a_larger_tolerance_ends_search_as_soon_as_the_least_work_is_near() -> None:
    graph, cluster = graph_of("bert-large"), load_cluster("dgx-a100-40g:4")
    options = PlanOptions(global_batch=1024, time_limit_s=120)
    best, near = (
        make_plan(graph, cluster, None, each).document for each in (options, replace(options, gap_tolerance=0.02))
    )
    assert near["evaluations"] < 0.2 * best["evaluations"]
    assert best["gap"] <= GAP_TOLERANCE < near["gap"] <= 0.02
    assert near["step_time_s"] <= best["step_time_s"] / (1 - 0.02)
    assert "ended_early" not in near
