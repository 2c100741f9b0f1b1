"""No strategy takes less than its problem costs, whatever the multipliers of what moves beside passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest
import torch
from torch import nn

from autosbp.api import LogicalGraph, PlanOptions, load_cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.overlap import Overlap
from autosbp.costmodel.p2p_cost import LinkModel
from autosbp.costmodel.strategy_cost import evaluate
from autosbp.graph.capture import build_on_meta, capture
from autosbp.plan.plan import Costs, Strategy
from autosbp.search import SEARCHERS, SearchOptions, SearchProblem
from autosbp.search._base import Edge, cost_of
from autosbp.search.branch_and_bound.checkpointing import StrategyCheckpointing
from autosbp.search.planner import Planner
from autosbp.search.problem.cost_weights import FASTEST, GATHER_PER_STEP, GATHER_PER_USE, UNSHARDED, hidden_slowdown
from autosbp.search.problem.mesh_views import mesh_views
from autosbp.search.stages.layout_problems import (
    LayoutProblems,
    OverlapWeights,
    PipelineStructure,
    Subproblem,
    SubproblemKey,
)
from autosbp.search.stages.schedule_candidates import pipelined_strategies
from autosbp.search.stages.stage_meshes import stage_meshes
from tests.search import plans

pytestmark = [pytest.mark.some(3), pytest.mark.integration]

CLUSTERS = ("piz-daint:4", "dgx-a100-40g:1x4", "local:2x2", "dgx-a100-40g:2x2")
"""Of one level and of two; with ops that messages slow down, and without."""
BATCHES = {
    "mlp-small": 64, "gpt2-demo": 64, "moe-small": 64, "wide-deep-small": 64, "resnet50-small": 64,
    "early": 2, "shared": 8, "alike": 8,
}  # fmt: skip
SMALL = ("early", "shared", "alike")
"""Those that take so little to search that much is drawn of them."""
STORAGES = (UNSHARDED, GATHER_PER_STEP, FASTEST, GATHER_PER_USE)
PARTS = (
    (0.0, 0.0, 1.0), (0.0, 0.0, 0.0), (1.0, 0.0, 1.0), (0.0, 1.0, 1.0), (1.0, 1.0, 1.0), (1.0, 1.0, 0.0), (0.4, 0.7, 0.5),
)  # fmt: skip
MESSAGES = (None, 2**20, 2**16, 2**14)
ROUNDING = 1e-9
COPY = "@"


class Early(nn.Module):
    """Parameters as large as what they are applied to, in another layout each time, before the first product."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.empty(256, 1024) for _ in range(3))
        self.layers = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for at, weight in enumerate(self.weights):
            x = torch.softmax(x * weight, 1 + at % 2)
        return self.layers(x).sum()


class Shared(nn.Module):
    """A parameter that is read three times, as in an encoder, a decoder and its head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2048, 256)
        self.layers = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        read = self.layers(self.embedding(x) + self.embedding(y))
        return nn.functional.linear(read, self.embedding.weight).square().mean()


class Alike(nn.Module):
    """Products and what is boxed between them, as large as their parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.layers(x), 1).sum()


@cache
def graph_of(name: str) -> LogicalGraph:
    if name == "early":
        return capture(build_on_meta(Early, torch.float32), {"x": torch.zeros(4, 256, 1024)}, name=name)
    if name == "shared":
        tokens = torch.zeros(4, 16, dtype=torch.int64)
        return capture(build_on_meta(Shared, torch.float32), {"x": tokens, "y": tokens}, name=name)
    if name == "alike":
        return capture(build_on_meta(Alike, torch.float32), {"x": torch.zeros(4, 64, 512)}, name=name)
    return plans.graph_of(name)


def planner_of(model: str, cluster_name: str, message: int | None, overlap: Overlap | None) -> Planner:
    cluster = load_cluster(cluster_name)
    calibration = None if overlap is None else Calibration(cluster, "gloo", "relative", (), overlap=overlap)
    return Planner(graph_of(model), cluster, calibration, PlanOptions(BATCHES[model], bucket_bytes=message), None)


def random_space(dice: Random, problems: LayoutProblems, *, piped: bool) -> SubproblemKey:
    structures = dict(stage_meshes(problems.network.cluster))
    most, batch = min(problems.max_stages, problems.global_batch), problems.global_batch
    stages = dice.choice([each for each in structures if 1 < each <= most]) if piped else 1
    view = dice.choice(mesh_views(structures[stages]))
    count = dice.choice([each for each in (1, 2, 4, 8) if stages <= each <= batch] or [batch])
    levels = [dice.randrange(len({axis.level for axis in view.axes} or {0})) for _ in range(3)]
    exposure = OverlapWeights(*dice.choice(PARTS), *levels)
    again = bool(problems.blocks) and dice.random() < 0.2
    return SubproblemKey(PipelineStructure(stages, view), batch // count, dice.choice(STORAGES), again, exposure)


def random_assignment(dice: Random, problem: SearchProblem) -> tuple[int, ...]:
    """A possible one: the least of random costs, and of so much of the problem's own; with the copies of parameters that cost
    least, which no strategy tells of."""
    tilt, noise = dice.choice((0.0, 1.0, 10.0)), np.random.default_rng(dice.randrange(2**32))
    scale = max(float(costs.max()) for costs in problem.unary_s)
    unary = tuple(tilt * costs + scale * noise.random(len(costs)) for costs in problem.unary_s)
    edges = tuple(Edge(edge.u, edge.v, np.where(np.isinf(edge.table), np.inf, 0.0)) for edge in problem.edges)
    found = SEARCHERS["auto"](replace(problem, unary_s=unary, edges=edges), SearchOptions()).assignment
    if not any(COPY in name for name in problem.names):
        return found
    much = 1e3 * sum(float(costs.max()) for costs in problem.unary_s)
    near = tuple(
        costs if COPY in name else np.where(np.arange(len(costs)) == value, costs, costs + much)
        for name, costs, value in zip(problem.names, problem.unary_s, found, strict=True)
    )
    cheapest = SEARCHERS["auto"](replace(problem, unary_s=near), SearchOptions()).assignment
    assert all(COPY in name or one == two for name, one, two in zip(problem.names, found, cheapest, strict=True))
    return min(found, cheapest, key=lambda each: cost_of(problem, each))


def in_stages(
    dice: Random, problems: LayoutProblems, layouts: Subproblem, assignment: tuple[int, ...], strategy: Strategy
) -> list[Strategy]:
    """Some of the pipelines that search makes of an assignment."""
    space, links = layouts.key, LinkModel(problems.network, problems.compute.copy_bytes_per_s)
    micro = problems.weights(space).micro
    seconds = {name: spent / micro for name, spent in problems.op_seconds(layouts, assignment).items()}
    graph, schedules = problems.bound(space.micro_batch), PlanOptions().schedules
    every = [
        each
        for _, each in pipelined_strategies(graph, strategy, seconds, space.stages, links, schedules, problems.starts)
    ]
    return dice.sample(every, min(2, len(every)))


def drawn(dice: Random, problems: LayoutProblems, space: SubproblemKey) -> Iterator[tuple[float, Strategy, Costs]]:
    """Strategies of a space, with what its problem costs them and what they take. Parameters that are gathered once a step
    are gathered for each use, too, which bounds have to be of as well."""
    layouts = problems.build(space, None, dominated=True)
    graph, boxing = problems.bound(space.micro_batch), problems.boxing(space.view)
    for _ in range(7 if space.stages == 1 and problems.graph.name in SMALL else 3):
        assignment = random_assignment(dice, layouts.problem)
        charged_s = cost_of(layouts.problem, assignment)
        sizes = (problems.sizes[0], problems.sizes[-1], 2**14)
        one = replace(problems.strategy(layouts, assignment), bucket_bytes=dice.choice(sizes))
        every = [one] if space.stages == 1 else in_stages(dice, problems, layouts, assignment, one)
        for strategy in every:
            made = StrategyCheckpointing(problems, 1, 0).of(strategy) if space.again else strategy
            yield charged_s, made, evaluate(graph, made, boxing, problems.compute, problems.known_chunks)
            if space.storage in (GATHER_PER_STEP, FASTEST) and not space.again:
                use = replace(made, gather="use")
                yield charged_s, use, evaluate(graph, use, boxing, problems.compute, problems.known_chunks)


@pytest.mark.some(3)
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("model", BATCHES)
@pytest.mark.parametrize("piped", [False, True])
def test_no_strategy_takes_less_than_its_problem_costs(model: str, cluster: str, piped: bool) -> None:
    """Of a pipeline, the part of it that is no waiting. A problem of parameters gathered for each use is no bound: the last
    gather's copies stay for backward, which it does not know."""
    dice = Random(f"{model} {cluster} {piped}")
    for message in dice.sample(MESSAGES, 2 if model in SMALL else 1):
        planner = planner_of(model, cluster, message, dice.choice((None, Overlap(2.0, 1.0))))
        for _ in range(5 if model in SMALL else 3):
            space = random_space(dice, planner.problems, piped=piped)
            working = planner.search.solver.busy_fraction(space)
            for charged_s, strategy, costs in drawn(dice, planner.problems, space):
                assert charged_s > 0.0
                if space.storage != GATHER_PER_USE:
                    assert charged_s * working <= costs.step_time_s * (1 + ROUNDING), (space, strategy.pipeline)
                parts_s = costs.compute_s + costs.exposed_comm_s + costs.bubble_s + costs.optimizer_s
                assert parts_s == pytest.approx(costs.step_time_s, rel=1e-9)
                assert min(costs.hidden_comm_s, costs.bubble_s, *costs.exposed.values(), 0.0) == 0.0


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("cluster", ["piz-daint:4", "local:2x2"])
def test_early_ops_count_nothing_beside_gathers_nor_does_what_is_boxed_for_them(cluster: str, storage: str) -> None:
    """Where gathers of what they read all count, as they do at first."""
    dice, problems = Random(f"{cluster} {storage}"), planner_of("early", cluster, 2**20, None).problems
    view = mesh_views(dict(stage_meshes(problems.network.cluster))[1])[0]
    space, parts = SubproblemKey(PipelineStructure(1, view), 1, storage), list[float]()
    for _ in range(12):
        parts += [charged_s / costs.step_time_s for charged_s, _, costs in drawn(dice, problems, space)]
    assert 0.8 < max(parts) <= 1 + ROUNDING


def test_what_is_hidden_slows_passes_down_as_their_simulation_has_it() -> None:
    assert hidden_slowdown(Overlap()) == 0.0
    assert hidden_slowdown(Overlap(compute=0.15)) == pytest.approx(0.15 / 1.15)
    assert hidden_slowdown(Overlap(compute=0.5, network=1.0)) == pytest.approx(2 * 0.5 / 1.5)
    assert hidden_slowdown(Overlap(compute=4.0, network=4.0)) == 1.0
