"""Bounds of stages under the memory limit: no strategy that exists is shut out, and memory raises bounds."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import nn

from autosbp.api import PlanOptions, load_cluster, make_plan
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.memory import rank_memory
from autosbp.costmodel.memory.libraries import held_bytes
from autosbp.costmodel.network import NetworkModel
from autosbp.graph.capture import build_on_meta, capture
from autosbp.plan import Costs, Strategy
from autosbp.schedules import GPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE, Schedule
from autosbp.search import SEARCHERS, SearchOptions
from autosbp.search.bounds import stage_bound, stage_costs
from autosbp.search.bounds.block_room import BlockRoom, Effort, Recomputed, Wanted
from autosbp.search.bounds.mixtures import best_price, lower_edge
from autosbp.search.bounds.stage_bound import StageBounds
from autosbp.search.bounds.stage_costs import Part
from autosbp.search.bounds.stage_values import Prices
from autosbp.search.planner import Planner
from autosbp.search.problem.build import ProblemBuilder
from autosbp.search.problem.strategy import strategy_of
from autosbp.search.problem.unfold import part_variables
from autosbp.search.problem.weights import AS_USED, FASTEST, STEP, USE, Weights
from autosbp.search.searchers.memory import least_memory
from autosbp.search.space import space_solver
from autosbp.search.space.stage_limited import Left, StageLimited
from autosbp.search.stages.layouts import Structure
from autosbp.search.stages.pipelines import Shape
from tests.search.plans import graph_of

HELD = held_bytes("cuda")
"""Of each limit: what a device's libraries have of it."""

GIB = 2**30
STORAGES = (FASTEST, STEP, USE)
SCHEDULED = PlanOptions().schedules
EVERY = (Recomputed(True, False), Recomputed(True, True), Recomputed(False, True, 4))
BATCH = 64
Met = list[tuple[Strategy, Costs]]


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> Met:
    """The strategies that searches without bounds of stages come to."""
    found: Met = []
    costed = space_solver.SpaceSolver._costs

    def keep(self, graph, strategy, boxing):  # type: ignore[no-untyped-def]
        costs = costed(self, graph, strategy, boxing)
        found.append((strategy, costs))
        return costs

    monkeypatch.setattr(space_solver.SpaceSolver, "_costs", keep)
    monkeypatch.setattr(StageLimited, "_bounds_stages", lambda *_: False)
    return found


@pytest.mark.parametrize(
    ("stages", "schedules", "limit_gib"),
    [
        (None, SCHEDULED, 40), (None, SCHEDULED, 2), (2, ONE_F_ONE_B, 2), (2, INTERLEAVED, 4), (2, ZERO_BUBBLE, 4),
        (4, GPIPE, 40), (4, INTERLEAVED, 40), (4, ONE_F_ONE_B, 2), (4, ZERO_BUBBLE, 40),
    ],
)  # fmt: skip
def test_no_strategy_is_shut_out_with_its_own_memory_as_the_limit(
    met: Met, stages: int | None, schedules: Schedule | tuple[str, ...], limit_gib: int
) -> None:
    graph, cluster = graph_of("gpt2"), load_cluster("dgx-a100-40g:1")
    kinds = (schedules.name,) if isinstance(schedules, Schedule) else schedules
    options = PlanOptions(
        global_batch=BATCH, memory_limit_bytes=limit_gib * GIB, stages=stages, schedules=kinds, baselines=()
    )
    make_plan(graph, cluster, None, options)
    problems = Planner(graph, cluster, None, PlanOptions(global_batch=BATCH), None).problems
    assert met
    for strategy, costs in met:
        kinds = ((strategy.pipeline.schedule if strategy.pipeline else ONE_F_ONE_B).name,)
        wanted = Wanted(STORAGES, EVERY, kinds, costs.memory_bytes_per_device)
        structure = Structure(strategy.num_stages, strategy.mesh)
        for times in (30.0, 3.0, 1 - 1e-7):
            bounds = StageBounds(problems, structure, [strategy.micro_batch], wanted, {})
            assert bounds.shut(times * costs.step_time_s, lambda: False) == [False], (times, strategy.pipeline, costs)
        assert 0 < bounds.least(0, costs.step_time_s) <= costs.step_time_s


def test_memory_raises_the_bound_and_changes_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, cluster = graph_of("gpt2"), load_cluster("dgx-a100-40g:1")
    options = PlanOptions(
        BATCH, memory_limit_bytes=2 * GIB, stages=2, schedules=(ONE_F_ONE_B.name,), time_limit_s=60, baselines=()
    )
    with_bounds = make_plan(graph, cluster, None, options).document
    monkeypatch.setattr(StageLimited, "_bounds_stages", lambda *_: False)
    without = make_plan(graph, cluster, None, options).document
    assert with_bounds["step_time_s"] <= without["step_time_s"] * (1 + 1e-12)
    assert without["lower_bound_s"] < with_bounds["lower_bound_s"] <= with_bounds["step_time_s"]
    assert with_bounds["gap"] < 0.8 * without["gap"]


class Alike(nn.Module):
    """Layers with more parameters than what they keep of a microbatch, so that the quickest layouts are not the smallest."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024, bias=False) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.sum()


@pytest.mark.parametrize("schedule", [GPIPE, ONE_F_ONE_B, INTERLEAVED])
def test_what_leaves_room_for_a_step_leaves_room_for_longer_ones(schedule: Schedule) -> None:
    graph = capture(build_on_meta(Alike, torch.float32), {"x": torch.zeros(4, 1024)}, name="alike")
    planner = Planner(graph, load_cluster("piz-daint:8"), None, PlanOptions(global_batch=1024), None)
    assert planner.problems.folding is not None
    structure = next(each for each in planner.structures() if each.stages == 2)
    wanted = Wanted(STORAGES, EVERY[:1], (schedule.name,), 31_000_000 + HELD)
    times_s = np.geomspace(1e-5, 10.0, 25).tolist()
    shut = [
        StageBounds(planner.problems, structure, [256], wanted, {}).shut(step_s, lambda: False) for step_s in times_s
    ]
    assert shut == sorted(shut, reverse=True) and [True] in shut and [False] in shut


def test_settling_one_structure_teaches_nothing_of_another() -> None:
    """So that it makes no difference which of two processes settles which."""
    graph, cluster = graph_of("gpt2"), load_cluster("dgx-a100-40g:1")
    planner = Planner(graph, cluster, None, PlanOptions(global_batch=BATCH, memory_limit_bytes=GIB), None)
    search, kind = planner.search, planner.kind()
    one, other = [structure for structure in planner.structures() if structure.stages == 2][:2]
    count = len(search.micro_batches(2))
    told = []
    for structures in ((other,), (one, other)):
        search.begin()
        for structure in structures:
            bounds = search._raised(Left(structure, [0.0] * count, [0.0] * count), kind, 0.5, lambda: False)
        assert len(search._stage_bounds) == len(structures) and not search._hints
        told.append(bounds)
    assert told[0] == told[1] and max(told[0]) > 0


def test_larger_microbatches_bound_what_lies_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """One problem stands for several sizes: what it says of each is no more than what a problem of its own does."""
    graph, cluster = graph_of("gpt2"), load_cluster("dgx-a100-40g:1")
    planner = Planner(graph, cluster, None, PlanOptions(global_batch=BATCH), None)
    wanted = Wanted(STORAGES, EVERY, (ONE_F_ONE_B.name,), GIB // 2)
    structure = next(each for each in planner.structures() if each.stages == 2)
    sizes = planner.search.micro_batches(2)
    own = [StageBounds(planner.problems, structure, [size], wanted, {}) for size in sizes]
    together = StageBounds(planner.problems, structure, sizes, wanted, {})
    step_s, room = 0.5, Mock(wraps=stage_bound._block_room)
    monkeypatch.setattr(stage_bound, "_block_room", room)
    shut = together.shut(step_s, lambda: False)
    assert any(shut) and room.call_count < len(sizes)
    for at, each in enumerate(own):
        assert not shut[at] or each.shut(step_s, lambda: False)[0]


@pytest.mark.parametrize("model", ["gpt2", "vit-large"])
@pytest.mark.parametrize("limit", [GIB, 40 * GIB])
def test_time_alone_leaves_no_less_room_than_memory_does(model: str, limit: int) -> None:
    planner = Planner(graph_of(model), load_cluster("dgx-a100-40g:1"), None, PlanOptions(global_batch=BATCH), None)
    compared = 0
    for structure in planner.structures():
        if structure.stages not in (2, 4):
            continue
        bounds = StageBounds(planner.problems, structure, [4], Wanted(STORAGES, EVERY, SCHEDULED, limit), {})
        room = bounds._room(0)
        assert isinstance(room, BlockRoom)
        shape = Shape(ONE_F_ONE_B, 1)
        for stage in range(structure.stages):
            for each in EVERY:
                for once in (False, True):
                    asked = 5.0, shape, stage, 1.0, each, once
                    room._effort = Effort.TIME
                    by_time, _ = room._capacity(*asked)
                    room._effort = Effort.REFINED
                    assert room._capacity(*asked)[0] <= by_time * (1 + 1e-9)
                    compared += 1
    assert compared > 20


def test_problems_that_recompute_are_built_where_memory_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner(graph_of("gpt2"), load_cluster("dgx-a100-40g:1"), None, PlanOptions(global_batch=BATCH), None)
    structure = next(each for each in planner.structures() if each.stages == 4)
    built: list[bool] = []
    problem = planner.problems.stage_problem
    monkeypatch.setattr(
        planner.problems, "stage_problem", lambda *given, again: built.append(again) or problem(*given, again=again)
    )
    for limit_bytes, step_s, is_shut, expected in [
        (40 * GIB, 1e-3, True, [False]),
        (40 * GIB, 1e3, False, [False]),
        (1 << 20, 1e3, True, [False, True]),
    ]:
        built.clear()
        bounds = StageBounds(planner.problems, structure, [8], Wanted(STORAGES, EVERY, SCHEDULED, limit_bytes), {})
        assert bounds.shut(step_s, lambda: False) == [is_shut]
        assert built == expected


def test_no_time_says_nothing() -> None:
    graph, cluster = graph_of("gpt2"), load_cluster("dgx-a100-40g:1")
    planner = Planner(graph, cluster, None, PlanOptions(global_batch=BATCH), None)
    bounds = StageBounds(planner.problems, planner.structures()[0], [8], Wanted(STORAGES, EVERY, (), 1), {})
    assert bounds.shut(1.0, lambda: True) == [False] and bounds.least(0, 1.0) == 0.0


def test_the_best_price_is_the_dual_of_the_largest_mixture() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        points = [(float(t), float(m)) for t, m in rng.uniform(0.1, 1.0, (rng.integers(1, 12), 2))]
        seconds, limit = rng.uniform(1.0, 20.0, 2)
        corners = lower_edge(points)
        assert corners[0][0] == min(points)[0] and all(a[1] > b[1] for a, b in pairwise(corners))
        price = best_price(corners, seconds, limit)
        room = (seconds + price * limit) / min(t + price * m for t, m in points)
        most = linprog([-1.0] * len(points), np.array(points).T, [seconds, limit])
        assert most.fun is not None and room == pytest.approx(-most.fun, rel=1e-4)


@pytest.mark.parametrize("micro_batch", [2, 16])
def test_prices_of_parts_are_concave_and_told_by_what_is_chosen(
    micro_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = Planner(graph_of("gpt2"), load_cluster("dgx-a100-40g:1"), None, PlanOptions(global_batch=BATCH), None)
    problems, structure = planner.problems, planner.structures()[0]
    assert problems.folding is not None
    built = problems.stage_problem(structure, micro_batch, STORAGES, again=False)
    part = Part(built, part_variables(built, problems.folding)[1], BATCH // micro_batch)
    quick, lean = part.known(once=True)
    assert lean.stays < quick.stays and lean.seconds > quick.seconds
    assert 0 < part.forward_s < part.shortest_s <= quick.seconds * micro_batch / BATCH * (1 + 1e-12)
    steps = np.linspace(0.0, 2 * (lean.seconds - quick.seconds) / (quick.stays - lean.stays), 9).tolist()
    found = [part.at(Prices(price, price, price)) for price in steps]
    for price, each in zip(steps, found, strict=True):
        paid = price * (each.stays + each.gradients + each.kept)
        assert each.least_s == pytest.approx(each.seconds + paid)
    rises = [after.least_s - before.least_s for before, after in pairwise(found)]
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(rises))
    part = Part(built, part_variables(built, problems.folding)[1], BATCH // micro_batch)
    part.is_large = True
    monkeypatch.setattr(stage_costs, "MUCH_WORK", 0.0)  # dominated values left out before
    for price, each in zip(steps[1:], found[1:], strict=True):
        again = part._priced(Prices(price, price, price))
        assert again.least_s == pytest.approx(each.least_s, rel=1e-12)


@pytest.mark.parametrize("once", [True, False])
def test_no_price_asks_for_a_value_that_another_one_stands_for(once: bool) -> None:
    planner = Planner(graph_of("gpt2"), load_cluster("dgx-a100-40g:2"), None, PlanOptions(global_batch=BATCH), None)
    problems, structure = planner.problems, planner.structures()[0]
    assert problems.folding is not None
    built = problems.stage_problem(structure, 16, STORAGES, again=False)
    few, every = (Part(built, part_variables(built, problems.folding)[1], BATCH // 16) for _ in range(2))
    few.is_large, every.is_large = True, False
    values = [sum(map(len, part._asked.problem.unary_s)) for part in (few, every)]
    assert values[0] < 0.9 * values[1]
    for stays, gradients, kept in np.random.default_rng(0).exponential(1e-10, (40, 3)).tolist():
        prices = Prices(stays, gradients, kept, once)
        assert few.at(prices).least_s == pytest.approx(every.at(prices).least_s, rel=1e-12)


@pytest.mark.parametrize("model", ["gpt2", "vit-large"])
def test_what_parts_keep_is_no_more_than_autograd_keeps(model: str) -> None:
    cluster = load_cluster("dgx-a100-40g:1")
    graph = graph_of(model).bind(**dict.fromkeys(graph_of(model).symbols, 16))
    compute = ComputeModel(cluster.device, None)
    boxing = BoxingModel(NetworkModel(cluster, None), cluster.mesh(), compute.copy_bytes_per_s)
    weights = Weights(1.0, state=0.0)
    builder = ProblemBuilder(
        graph, boxing, compute, num_micro=1, optimizer="adamw", weights=weights, others=(AS_USED,)
    )  # fmt: skip
    built = builder.build(None)
    assert built.detail is not None
    quick = SEARCHERS["exact"](built.problem, SearchOptions()).assignment
    for assignment in (quick, least_memory(built.problem, lambda: None).assignment):
        strategy = strategy_of(
            built, assignment, graph, boxing, global_batch=16, micro_batch=16, optimizer="adamw"
        )  # fmt: skip
        kept = rank_memory(graph, strategy, device="cuda").kept
        told = sum(float(part.kept[value]) for part, value in zip(built.detail.parts, assignment, strict=True))
        assert 0.9 * kept < told <= kept
