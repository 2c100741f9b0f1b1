"""No strategy takes less than its problem costs, whatever the multipliers of what moves beside passes."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from autosbp.api import LogicalGraph, capture, load_cluster
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.evaluate import evaluate
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.overlap import Overlap
from autosbp.search import SEARCHERS, SearchOptions, SearchProblem
from autosbp.search._base import Edge, cost_of
from autosbp.search.problem.pinned import Pins
from autosbp.search.problem.views import mesh_views
from autosbp.search.problem.weights import AS_USED, FASTEST, STEP, hidden_slowdown
from autosbp.search.stages.layouts import Exposure, LayoutProblems, Space, Structure
from autosbp.search.stages.stage_meshes import stage_meshes

EXPOSURES = [Exposure(gather, reduce) for gather in (0.0, 0.4, 1.0) for reduce in (0.0, 0.7, 1.0)]
CLUSTERS = ("piz-daint:4", "dgx-a100-40g:2", "gcp-a100-16:2", "local:2x2")
ROUNDING = 1e-6


@cache
def graph_of(name: str) -> LogicalGraph:
    return capture(f"zoo:{name}")


def problems_of(model: str, cluster_name: str, batch: int) -> LayoutProblems:
    cluster = load_cluster(cluster_name)
    return LayoutProblems(
        graph_of(model), NetworkModel(cluster, None), ComputeModel(cluster.device, None),
        global_batch=batch, optimizer="adamw", pins=Pins({}, {}, {}),
    )  # fmt: skip


def random_assignment(rng: random.Random, problem: SearchProblem, tilt: float) -> tuple[int, ...]:
    """A possible one: the least of random costs, and of so much of the problem's own."""
    noise = np.random.default_rng(rng.randrange(2**32))
    scale = max(float(costs.max()) for costs in problem.unary_s)
    unary = tuple(tilt * costs + scale * noise.random(len(costs)) for costs in problem.unary_s)
    edges = tuple(Edge(edge.u, edge.v, np.where(np.isinf(edge.table), np.inf, 0.0)) for edge in problem.edges)
    return SEARCHERS["auto"](replace(problem, unary_s=unary, edges=edges), SearchOptions()).assignment


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("model", ("mlp-small", "gpt2-demo", "moe-small", "wide-deep-small", "resnet50-small"))
def test_no_strategy_takes_less_than_its_problem_costs(model: str, cluster: str) -> None:
    rng = random.Random(f"{model} {cluster}")
    problems = problems_of(model, cluster, 64)
    view = rng.choice(mesh_views(dict(stage_meshes(load_cluster(cluster)))[1]))
    for _ in range(12):
        exposure, storage = rng.choice(EXPOSURES), rng.choice((AS_USED, STEP, FASTEST))
        space = Space(Structure(1, view), rng.choice((64, 32, 16)), storage, exposure=exposure)
        layouts = problems.build(space, None, dominated=True)
        graph, boxing = problems.bound(space.micro_batch), problems.boxing(view)
        for _ in range(4):
            assignment = random_assignment(rng, layouts.problem, rng.choice((0.0, 1.0, 10.0)))
            charged_s = cost_of(layouts.problem, assignment)
            strategy = problems.strategy(layouts, assignment)
            costs = evaluate(graph, strategy, boxing, problems.compute)
            assert 0.0 < charged_s <= costs.step_time_s * (1 + ROUNDING), (exposure, storage, space.micro_batch)
            parts_s = costs.compute_s + costs.exposed_comm_s + costs.bubble_s + costs.optimizer_s
            assert parts_s == pytest.approx(costs.step_time_s, rel=1e-9)


def test_what_is_hidden_slows_passes_down_as_their_simulation_has_it() -> None:
    assert hidden_slowdown(Overlap()) == 0.0
    assert hidden_slowdown(Overlap(compute=0.15)) == pytest.approx(0.15 / 1.15)
    assert hidden_slowdown(Overlap(compute=0.5, network=1.0)) == pytest.approx(2 * 0.5 / 1.5)
    assert hidden_slowdown(Overlap(compute=4.0, network=4.0)) == 1.0
