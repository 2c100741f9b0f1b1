"""Problems hold the optimum of all layouts: each op with one of its own, nothing followed, nothing left out."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from autosbp.api import LogicalGraph, PlanOptions, capture_module, load_cluster, load_graph, make_plan
from autosbp.cluster.spec import Cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.search import SEARCHERS, SearchOptions
from autosbp.search.problem import op_clusters
from autosbp.search.problem.builder import ProblemBuilder
from tests.tiers import form

pytestmark = pytest.mark.integration

DATA = Path(__file__).parents[1] / "data"
GRAPHS = form(40, 300)
MOST_OPS = 7
WIDTHS = (4, 6, 8, 12, 24)
Act = Callable[[torch.Tensor], torch.Tensor]


class Made(nn.Module):
    """Some ops one after the other, drawn by a seed; the loss is a sum of squares."""

    def __init__(self, rng: random.Random, features: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        self.steps: list[Act] = []
        sizes = self._add(rng, [features], "linear")  # of all dims but the batch
        for _ in range(rng.randint(1, MOST_OPS - 3)):
            sizes = self._add(rng, sizes)

    def _add(self, rng: random.Random, sizes: Sequence[int], kind: str = "") -> list[int]:
        last = sizes[-1]
        kind = kind or rng.choice(
            ("linear", "linear", "tanh", "view", "flatten", "permute", "halves", "doubled", "expand", "mean")
        )
        divisors = [each for each in (2, 3, 4) if last % each == 0]
        if kind == "view" and len(sizes) == 1 and divisors:
            rows = rng.choice(divisors)
            self.steps.append(lambda x: x.reshape(x.shape[0], rows, last // rows))
            return [rows, last // rows]
        if kind == "flatten" and len(sizes) == 2:
            self.steps.append(lambda x: x.flatten(1))
            return [sizes[0] * sizes[1]]
        if kind == "permute" and len(sizes) == 2:
            self.steps.append(lambda x: x.transpose(1, 2))
            return [sizes[1], sizes[0]]
        if kind == "halves" and last % 2 == 0:
            self.steps.append(lambda x: torch.mul(*x.chunk(2, dim=-1)))
            return [*sizes[:-1], last // 2]
        if kind == "doubled" and last <= WIDTHS[-1]:
            self.steps.append(lambda x: torch.cat([x, torch.tanh(x)], dim=-1))
            return [*sizes[:-1], 2 * last]
        if kind == "expand" and len(sizes) == 1:
            self.steps.append(lambda x: x.unsqueeze(1).expand(-1, 3, -1))
            return [3, last]
        if kind == "mean" and len(sizes) == 2:
            self.steps.append(lambda x: x.mean(dim=1))
            return [last]
        if kind == "tanh":
            self.steps.append(torch.tanh)
            return list(sizes)
        layer = nn.Linear(last, rng.choice(WIDTHS), bias=rng.random() < 0.3)
        self.layers.append(layer)
        self.steps.append(layer)
        return [*sizes[:-1], layer.out_features]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = step(x)
        return x.pow(2).sum()


def made_graph(seed: int) -> LogicalGraph:
    rng = random.Random(seed)
    features = rng.choice(WIDTHS)
    example = {"x": torch.randn(12, features, requires_grad=False)}
    return capture_module(Made(rng, features), example, name=f"made-{seed}")


def optimum_s(graph: LogicalGraph, cluster: Cluster, *, explicit: bool) -> float:
    compute = ComputeModel(cluster.device, None)
    boxing = BoxingModel(NetworkModel(cluster, None), cluster.mesh(), compute.copy_bytes_per_s)
    bound = graph.bind(**dict.fromkeys(graph.symbols, 12))
    built = ProblemBuilder(bound, boxing, compute, num_micro=1, optimizer="sgd").build(None, dominated=explicit)
    return SEARCHERS["exact"](built.problem, SearchOptions()).cost_s


@pytest.mark.some(2)
@pytest.mark.parametrize("cluster_name", ["local:2x2", "local:3"])
def test_no_explicit_layout_of_made_up_graphs_costs_less_than_the_problems_optimum(
    cluster_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, rng, compared = load_cluster(cluster_name), random.Random(cluster_name), 0
    for _ in range(GRAPHS):
        graph = made_graph(rng.randrange(10**6))
        found_s = optimum_s(graph, cluster, explicit=False)
        with monkeypatch.context() as patch:
            patch.setattr(op_clusters, "_view_input", lambda _graph, _node: None)
            explicit_s = optimum_s(graph, cluster, explicit=True)
        assert found_s == pytest.approx(explicit_s, rel=1e-9), graph.name
        compared += 1
    assert compared == GRAPHS


def test_a_column_split_that_a_view_cannot_take_is_gathered_before_it() -> None:
    """The view's 3 rows do not split over 4 devices, the 12,288 columns that it views do."""
    graph = load_graph(json.loads((DATA / "view3.graph.json").read_text()))
    cluster = load_cluster(str(DATA / "cluster_slow.json"))
    plan = make_plan(graph, cluster, None, PlanOptions(global_batch=1, stages=1, optimizer="sgd"))
    assert plan.document["gap"] == 0.0 and plan.document["step_time_s"] == pytest.approx(21.378e-3, rel=1e-4)
    assert str(plan.strategy.signatures["linear_0"]) == "B S0 -> S1"
