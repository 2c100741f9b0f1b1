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
from autosbp.costmodel.memory.library_workspace import library_bytes
from autosbp.costmodel.network import NetworkModel
from autosbp.graph.capture import build_on_meta, capture
from autosbp.plan.plan import Costs, Strategy
from autosbp.plan.schedules import GPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE, Schedule
from autosbp.search import SEARCHERS, SearchOptions
from autosbp.search.bounds import stage_bound, stage_costs
from autosbp.search.bounds.convex_hull import lower_hull, tightest_multiplier
from autosbp.search.bounds.memory_capacity_bound import (
    BlockCapacity,
    BoundedStrategies,
    CheckpointingChoice,
    MultiplierEffort,
)
from autosbp.search.bounds.stage_bound import StageBounds
from autosbp.search.bounds.stage_costs import StageSubproblem
from autosbp.search.bounds.stage_subproblem_values import MemoryMultipliers
from autosbp.search.branch_and_bound.context import OpenStructure
from autosbp.search.branch_and_bound.search_stats import SearchStats
from autosbp.search.branch_and_bound.stage_pruning import StagePruning
from autosbp.search.branch_and_bound.strategy_coster import StrategyCoster
from autosbp.search.planner import Planner
from autosbp.search.problem.builder import ProblemBuilder
from autosbp.search.problem.cost_weights import FASTEST, GATHER_PER_STEP, GATHER_PER_USE, UNSHARDED, CostWeights
from autosbp.search.problem.expand_repeats import part_variables
from autosbp.search.problem.strategy import strategy_of
from autosbp.search.solvers.lagrangian import least_memory
from autosbp.search.stages.layout_problems import PipelineStructure
from autosbp.search.stages.schedule_candidates import ScheduleShape
from tests.search.plans import graph_of

pytestmark = [pytest.mark.some(2), pytest.mark.integration]

HELD = library_bytes("cuda")
"""Of each limit: what a device's libraries have of it."""

GIB = 2**30
STORAGES = (FASTEST, GATHER_PER_STEP, GATHER_PER_USE)
SCHEDULED = PlanOptions().schedules
EVERY = (CheckpointingChoice(True, False), CheckpointingChoice(True, True), CheckpointingChoice(False, True, 4))
BATCH = 64
Met = list[tuple[Strategy, Costs]]


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> Met:
    """The strategies that searches without bounds of stages come to."""
    found: Met = []
    costed = StrategyCoster.costs

    def keep(self, graph, strategy, boxing):  # type: ignore[no-untyped-def]
        costs = costed(self, graph, strategy, boxing)
        found.append((strategy, costs))
        return costs

    monkeypatch.setattr(StrategyCoster, "costs", keep)
    monkeypatch.setattr(StagePruning, "_bounds_stages", lambda *_: False)
    return found


@pytest.mark.some(2)
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
        wanted = BoundedStrategies(STORAGES, EVERY, kinds, costs.memory_bytes_per_device)
        structure = PipelineStructure(strategy.num_stages, strategy.mesh)
        for times in (30.0, 3.0, 1 - 1e-7):
            bounds = StageBounds(problems, structure, [strategy.micro_batch], wanted, {})
            assert bounds.infeasible_sizes(times * costs.step_time_s, lambda: False) == [False], (
                times,
                strategy.pipeline,
                costs,
            )
        assert 0 < bounds.least(0, costs.step_time_s) <= costs.step_time_s


def test_memory_raises_the_bound_and_changes_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, cluster = graph_of("gpt2"), load_cluster("dgx-a100-40g:1")
    options = PlanOptions(
        BATCH, memory_limit_bytes=2 * GIB, stages=2, schedules=(ONE_F_ONE_B.name,), time_limit_s=60, baselines=()
    )
    with_bounds = make_plan(graph, cluster, None, options).document
    monkeypatch.setattr(StagePruning, "_bounds_stages", lambda *_: False)
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
    wanted = BoundedStrategies(STORAGES, EVERY[:1], (schedule.name,), 31_000_000 + HELD)
    times_s = np.geomspace(1e-5, 10.0, 25).tolist()
    shut = [
        StageBounds(planner.problems, structure, [256], wanted, {}).infeasible_sizes(step_s, lambda: False)
        for step_s in times_s
    ]
    assert shut == sorted(shut, reverse=True) and [True] in shut and [False] in shut


def test_bounds_of_one_structure_do_not_apply_to_another() -> None:
    """So that it makes no difference which of two processes settles which."""
    graph, cluster = graph_of("gpt2"), load_cluster("dgx-a100-40g:1")
    planner = Planner(graph, cluster, None, PlanOptions(global_batch=BATCH, memory_limit_bytes=GIB), None)
    search = planner.search
    one, other = [structure for structure in planner.structures() if structure.stages == 2][:2]
    count = len(search.context.micro_batches(2))
    told = []
    for structures in ((other,), (one, other)):
        search.context.begin(planner.kind(), SearchStats(), None)
        for structure in structures:
            bounds = search.pruning._stage_bounds_s(
                OpenStructure(structure, [0.0] * count, [0.0] * count), 0.5, lambda: False
            )
        assert len(search.context.findings.stage_bounds) == len(structures) and not search.context.findings.hints
        told.append(bounds)
    assert told[0] == told[1] and max(told[0]) > 0


def test_larger_microbatches_bound_what_lies_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """One problem stands for several sizes: what it says of each is no more than what a problem of its own does."""
    graph, cluster = graph_of("gpt2"), load_cluster("dgx-a100-40g:1")
    planner = Planner(graph, cluster, None, PlanOptions(global_batch=BATCH), None)
    wanted = BoundedStrategies(STORAGES, EVERY, (ONE_F_ONE_B.name,), GIB // 2)
    structure = next(each for each in planner.structures() if each.stages == 2)
    sizes = planner.search.context.micro_batches(2)
    own = [StageBounds(planner.problems, structure, [size], wanted, {}) for size in sizes]
    together = StageBounds(planner.problems, structure, sizes, wanted, {})
    step_s, room = 0.5, Mock(wraps=stage_bound._block_capacity)
    monkeypatch.setattr(stage_bound, "_block_capacity", room)
    shut = together.infeasible_sizes(step_s, lambda: False)
    assert any(shut) and room.call_count < len(sizes)
    for at, each in enumerate(own):
        assert not shut[at] or each.infeasible_sizes(step_s, lambda: False)[0]


@pytest.mark.parametrize("model", ["gpt2", "vit-large"])
@pytest.mark.parametrize("limit", [GIB, 40 * GIB])
def test_time_alone_leaves_no_less_room_than_memory_does(model: str, limit: int) -> None:
    planner = Planner(graph_of(model), load_cluster("dgx-a100-40g:1"), None, PlanOptions(global_batch=BATCH), None)
    compared = 0
    for structure in planner.structures():
        if structure.stages not in (2, 4):
            continue
        bounds = StageBounds(planner.problems, structure, [4], BoundedStrategies(STORAGES, EVERY, SCHEDULED, limit), {})
        room = bounds._capacity(0)
        assert isinstance(room, BlockCapacity)
        shape = ScheduleShape(ONE_F_ONE_B, 1)
        for stage in range(structure.stages):
            for each in EVERY:
                for once in (False, True):
                    asked = 5.0, shape, stage, 1.0, each, once
                    room._effort = MultiplierEffort.TIME
                    by_time, _ = room._capacity(*asked)
                    room._effort = MultiplierEffort.REFINED
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
        bounds = StageBounds(
            planner.problems, structure, [8], BoundedStrategies(STORAGES, EVERY, SCHEDULED, limit_bytes), {}
        )
        assert bounds.infeasible_sizes(step_s, lambda: False) == [is_shut]
        assert built == expected


def test_without_time_there_is_no_bound() -> None:
    graph, cluster = graph_of("gpt2"), load_cluster("dgx-a100-40g:1")
    planner = Planner(graph, cluster, None, PlanOptions(global_batch=BATCH), None)
    bounds = StageBounds(planner.problems, planner.structures()[0], [8], BoundedStrategies(STORAGES, EVERY, (), 1), {})
    assert bounds.infeasible_sizes(1.0, lambda: True) == [False] and bounds.least(0, 1.0) == 0.0


def test_the_best_price_is_the_dual_of_the_largest_mixture() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        points = [(float(t), float(m)) for t, m in rng.uniform(0.1, 1.0, (rng.integers(1, 12), 2))]
        seconds, limit = rng.uniform(1.0, 20.0, 2)
        corners = lower_hull(points)
        assert corners[0][0] == min(points)[0] and all(a[1] > b[1] for a, b in pairwise(corners))
        price = tightest_multiplier(corners, seconds, limit)
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
    part = StageSubproblem(built, part_variables(built, problems.folding)[1], BATCH // micro_batch)
    quick, lean = part.known(once=True)
    assert lean.stays < quick.stays and lean.seconds > quick.seconds
    assert 0 < part.forward_s < part.least_microbatch_s <= quick.seconds * micro_batch / BATCH * (1 + 1e-12)
    steps = np.linspace(0.0, 2 * (lean.seconds - quick.seconds) / (quick.stays - lean.stays), 9).tolist()
    found = [part.at(MemoryMultipliers(price, price, price)) for price in steps]
    for price, each in zip(steps, found, strict=True):
        paid = price * (each.stays + each.gradients + each.kept)
        assert each.least_s == pytest.approx(each.seconds + paid)
    rises = [after.least_s - before.least_s for before, after in pairwise(found)]
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(rises))
    part = StageSubproblem(built, part_variables(built, problems.folding)[1], BATCH // micro_batch)
    part.is_large = True
    monkeypatch.setattr(stage_costs, "MANY_ADDITIONS", 0.0)  # dominated values left out before
    for price, each in zip(steps[1:], found[1:], strict=True):
        again = part._priced(MemoryMultipliers(price, price, price))
        assert again.least_s == pytest.approx(each.least_s, rel=1e-12)


@pytest.mark.parametrize("once", [True, False])
def test_no_price_asks_for_a_value_that_another_one_stands_for(once: bool) -> None:
    planner = Planner(graph_of("gpt2"), load_cluster("dgx-a100-40g:2"), None, PlanOptions(global_batch=BATCH), None)
    problems, structure = planner.problems, planner.structures()[0]
    assert problems.folding is not None
    built = problems.stage_problem(structure, 16, STORAGES, again=False)
    few, every = (StageSubproblem(built, part_variables(built, problems.folding)[1], BATCH // 16) for _ in range(2))
    few.is_large, every.is_large = True, False
    values = [sum(map(len, part._undominated_subproblem.problem.unary_s)) for part in (few, every)]
    assert values[0] < 0.9 * values[1]
    for stays, gradients, kept in np.random.default_rng(0).exponential(1e-10, (40, 3)).tolist():
        prices = MemoryMultipliers(stays, gradients, kept, once)
        assert few.at(prices).least_s == pytest.approx(every.at(prices).least_s, rel=1e-12)


@pytest.mark.parametrize("model", ["gpt2", "vit-large"])
def test_what_parts_keep_is_no_more_than_autograd_keeps(model: str) -> None:
    cluster = load_cluster("dgx-a100-40g:1")
    graph = graph_of(model).bind(**dict.fromkeys(graph_of(model).symbols, 16))
    compute = ComputeModel(cluster.device, None)
    boxing = BoxingModel(NetworkModel(cluster, None), cluster.mesh(), compute.copy_bytes_per_s)
    weights = CostWeights(1.0, state=0.0)
    builder = ProblemBuilder(
        graph, boxing, compute, num_micro=1, optimizer="adamw", weights=weights, others=(UNSHARDED,)
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
