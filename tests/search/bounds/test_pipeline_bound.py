"""Bounds with waits and messages: no pipeline is below them, however it is cut, and they prove what work alone does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn

from autosbp.api import PlanOptions, load_cluster, make_plan
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.hardware_scaling import scale_link_bandwidth
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.p2p_cost import LinkModel
from autosbp.costmodel.pipeline_cost import _Pipelined
from autosbp.costmodel.step_events import Timeline
from autosbp.graph.capture import build_on_meta, capture
from autosbp.plan.pipeline import Pipeline
from autosbp.plan.schedules import INTERLEAVED, RUNNABLE
from autosbp.search.bounds.chunk_lower_bounds import chunk_work_items
from autosbp.search.bounds.chunk_weights import STEP
from autosbp.search.bounds.memory_capacity_bound import BlockCapacity
from autosbp.search.bounds.pipeline_bound import MAX_GAME_STAGES, PipelineBounds
from autosbp.search.bounds.stage_costs import StageSubproblem
from autosbp.search.bounds.stage_subproblem_values import MemoryMultipliers
from autosbp.search.branch_and_bound.candidate import INFINITE
from autosbp.search.branch_and_bound.context import OpenStructure
from autosbp.search.branch_and_bound.stage_pruning import BUBBLE_BOUND_FROM, StagePruning
from autosbp.search.planner import Planner
from autosbp.search.problem.cost_weights import FASTEST, GATHER_PER_USE
from autosbp.search.problem.cost_weights import GATHER_PER_STEP as STEP_STORED
from autosbp.search.stages.cut_points import computed, cut_places
from autosbp.search.stages.layout_problems import PipelineStructure
from autosbp.search.stages.schedule_candidates import schedule_shapes
from tests.search.plans import graph_of

pytestmark = pytest.mark.integration

STORAGES = (FASTEST, STEP_STORED, GATHER_PER_USE)


def never() -> bool:
    return False


@pytest.mark.parametrize(
    ("model", "preset", "slow", "batch", "stages", "count"),
    [("wide-deep", "dgx-a100-40g:2", 1, 256, 2, 2), ("wide-deep", "dgx-a100-40g:2", 1, 256, 4, 16),
     ("vgg13", "dgx-a100-40g:1", 1, 64, 4, 4), ("vgg13", "dgx-a100-40g:4", 200, 64, 4, 8),
     ("resnet50", "dgx-a100-40g:2", 1, 128, 8, 16), ("resnet50", "dgx-a100-40g:4", 50, 128, 4, 16),
     ("vit-large", "dgx-a100-40g:1", 1, 64, 4, 8), ("vit-large", "dgx-a100-40g:4", 50, 64, 4, 8)],
)  # fmt: skip
@pytest.mark.some(8)
def test_no_pipeline_is_below_its_bound_however_it_is_cut(
    model: str, preset: str, slow: int, batch: int, stages: int, count: int
) -> None:
    """The bound gets what the strategy's stages really work, so that only waits and messages may be too much; with links
    between nodes that are so many times slower, too."""
    graph, dice = graph_of(model), np.random.default_rng(count)
    cluster, _ = scale_link_bandwidth(load_cluster(preset), None, 0, 1 / slow)
    options = PlanOptions(global_batch=batch, micro_batch=batch // count, stages=stages, baselines=())
    strategy = make_plan(graph, cluster, None, options).strategy
    problems = Planner(graph, cluster, None, options, None).problems
    assert (problems.folding is None) == (model != "vit-large")
    network, compute = NetworkModel(cluster), ComputeModel(cluster.device)
    boxing = BoxingModel(network, strategy.mesh)
    structure, bound = PipelineStructure(stages, strategy.mesh), graph.bind(batch=batch // count)
    names = [node.name for node in bound.nodes if node.name in bound.parameter_dependent][1:]
    names = [name for name in names if problems.starts is None or name in problems.starts]
    plain = replace(strategy, pipeline=None)
    seconds = Timeline(bound, plain, boxing, compute).op_seconds()
    before = np.cumsum([seconds.get(name, 0.0) for name in names]) + np.arange(len(names)) * 1e-9
    nearest, raised, seen, known = [], [], set(), dict[tuple[str, bool], PipelineBounds]()
    for turn in range(40):
        shape = dice.choice(np.array([*schedule_shapes(stages, count, RUNNABLE)], dtype=object))
        if shape.virtual * stages > len(names) + 1:
            continue
        at = np.sort(dice.choice(len(names), shape.virtual * stages - 1, replace=False))
        if turn % 2:  # about even chunks
            shares = np.linspace(0, before[-1], shape.virtual * stages + 1)[1:-1]
            even = np.unique(np.searchsorted(before, shares * dice.uniform(0.9, 1.1)).clip(0, len(names) - 1))
            at = even if len(even) == len(at) else at
        pipeline = Pipeline(stages, tuple(names[place] for place in at), shape.schedule)
        found = _Pipelined(bound, replace(strategy, pipeline=pipeline), boxing, compute)
        work_s = sum(
            found._passes(stage).seconds + found._once_per_step(stage).seconds + found._optimizer_s(stage)
            for stage in range(stages)
        )
        exposed = turn % 4 > 1  # all that moves once a step, or none of it
        problems.communication_bound = {structure.key} if exposed else set()
        key = shape.schedule.name, exposed
        if key not in known:
            known[key] = PipelineBounds(problems, structure, [batch // count], STORAGES, (shape.schedule.name,))
        waits = known[key]
        model_of = waits._model(batch // count)
        assert model_of is not None
        waited = problems.waits(stages, count)
        first = (work_s - waited / (count + waited) * model_of.once_s) / stages
        step_s = max(found.ends())
        least_s = waits.raised(0, first, first, 10 * step_s)
        assert work_s / stages * (1 - 1e-6) <= least_s <= step_s * (1 + 1e-9), (pipeline, count)
        nearest.append(least_s / step_s)
        raised.append(least_s / first)
        seen.add(shape.schedule.name)
    assert len(seen) > 2
    if slow == 1:
        assert max(nearest) > 0.6, "a bound that is nowhere near says nothing"
    else:  # of cuts at random, none is good
        assert max(raised) > 1.5, "messages have to be in it"


@pytest.mark.parametrize("model", ["vgg13", "vit-large", "resnet50"])
@pytest.mark.long
def test_waits_prove_what_work_alone_does_not(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    def planned() -> dict[str, float]:
        options = PlanOptions(global_batch=1024, baselines=())
        return make_plan(graph_of(model), load_cluster("dgx-a100-40g:4"), None, options).document

    proved = planned()
    monkeypatch.setattr(StagePruning, "_waited", lambda _self, left, *_, **__: left.bounds)
    monkeypatch.setattr(BlockCapacity, "_waiting", lambda *_: False)
    without = planned()
    assert proved["gap"] == 0 < without["gap"]
    assert proved["step_time_s"] == without["step_time_s"]


def test_bounds_at_the_target_are_not_raised() -> None:
    graph, cluster = graph_of("vgg13"), load_cluster("dgx-a100-40g:1")
    problems = Planner(graph, cluster, None, PlanOptions(global_batch=64), None).problems
    structure = next(
        each
        for each in Planner(graph, cluster, None, PlanOptions(global_batch=64), None).structures()
        if each.stages == 2
    )
    waits = PipelineBounds(problems, structure, [32, 16, 8], STORAGES, RUNNABLE)
    raised = [waits.raised(at, searched_s, 0.0, 2.0) for at, searched_s in enumerate((1e-4, 2e-4, 3.0))]
    assert 1e-4 < raised[0] < 2.0 and 2e-4 < raised[1] < 2.0 and raised[2] == 3.0
    assert waits.raised(0, 1e-4, 0.0, raised[0] / 2) == raised[0] / 2
    # More microbatches wait less, smaller parts of a stage do, too.
    few = PipelineBounds(problems, structure, [32], STORAGES, ("1f1b",)).raised(0, 1e-2, 0.0, 9.0)
    many = PipelineBounds(problems, structure, [8], STORAGES, ("1f1b",)).raised(0, 1e-2, 0.0, 9.0)
    assert few > many > 1e-2


@pytest.mark.parametrize(
    ("model", "cluster", "batch", "limit"),
    [
        ("moe-small", "local:2x4", 64, None),
        ("gpt2-demo", "local:2x4", 32, 40_000_000),
        ("resnet50", "dgx-a100-40g:1", 64, None),
    ],
)
@pytest.mark.some(3)
def test_the_least_bound_is_that_of_all_raised_one_by_one(
    monkeypatch: pytest.MonkeyPatch, model: str, cluster: str, batch: int, limit: int | None
) -> None:
    least_raised, seen = StagePruning._least_raised, list[tuple[float, float, float]]()

    def one_by_one(search: StagePruning, left: OpenStructure, level: float) -> float:
        bounds = list(search._stage_bounds_s(left, level, never))
        left = replace(left, bubble_free_bounds=list(bounds))
        few = search.problems.folding is None and left.structure.stages <= MAX_GAME_STAGES
        if search.problems.folding is None or BUBBLE_BOUND_FROM * level <= min(bounds):
            for at, bound in enumerate(bounds):
                alone = [INFINITE] * len(bounds)
                alone[at] = bound
                bounds[at] = min(search._waited(replace(left, bounds=alone), level, never, cut_by_cut=few))
        return min(bounds)

    def told(search: StagePruning, level: float, overdue: Callable[[], bool]) -> float:
        expected = min([level, *(one_by_one(search, left, level) for left in search.learnt.left)])
        found = least_raised(search, level, never)
        seen.append((found, expected, level if search.problems.folding is None else expected))
        return found

    monkeypatch.setattr(StagePruning, "_least_raised", told)
    options = PlanOptions(global_batch=batch, memory_limit_bytes=limit, baselines=())
    make_plan(graph_of(model), load_cluster(cluster), None, options)
    assert seen
    # Games that are asked for less prove more of it in as many turns: without repeated blocks all together may say more.
    for found, expected, most in seen:
        assert expected * (1 - 3e-4) <= found <= most * (1 + 3e-4)  # bisections of block_room


def test_lines_are_below_messages() -> None:
    cluster = load_cluster("dgx-a100-40g:2")
    links = LinkModel(NetworkModel(cluster), 1e12)
    ranks = np.arange(4)
    for target in (4, 8, 12):
        begin, slope = links.even_exchange_lower_bound(ranks, ranks + target)
        for size in (1, 10_000, 10**7, 10**9):
            took = links.even_exchange_s(ranks, ranks + target, size)
            assert begin + slope * size <= took * (1 + 1e-12)
            assert begin + slope * size > 0.5 * took


@pytest.mark.parametrize("schedule", ["interleaved_1f1b", "zero_bubble"])
@pytest.mark.parametrize(
    ("model", "preset", "batch", "stages", "count", "near"),
    [("vgg13", "dgx-a100-40g:1", 64, 2, 4, 0.89), ("wide-deep", "dgx-a100-40g:1", 256, 4, 8, 0.4),
     ("resnet50", "dgx-a100-40g:2", 128, 2, 2, 0.75), ("moe-small", "local:2x4", 64, 4, 4, 0.2)],
)  # fmt: skip
@pytest.mark.some(3)
def test_no_plan_is_below_what_is_found_cut_by_cut(
    model: str, preset: str, batch: int, stages: int, count: int, near: float, schedule: str
) -> None:
    """The best pipeline that search knows, whose cuts are good ones; the bound is far nearer to it than without games."""
    graph, cluster = graph_of(model), load_cluster(preset)
    options = PlanOptions(
        global_batch=batch, micro_batch=batch // count, stages=stages, schedules=(schedule,), recompute=0, baselines=()
    )
    plan = make_plan(graph, cluster, None, options)
    step_s, problems = plan.document["step_time_s"], Planner(graph, cluster, None, options, None).problems
    structure = PipelineStructure(stages, plan.strategy.mesh)
    waits = PipelineBounds(problems, structure, [batch // count], STORAGES, (schedule,))
    known = waits.raised(0, 0.0, 0.0, 2 * step_s)
    found = []
    for part in (0.9, 0.95, 1.0, 1.001):  # some of it is proved; above some pipelines are quicker
        found.append(waits.raised(0, 0.0, 0.0, part * step_s, never))
        assert min(known, part * step_s) * (1 - 1e-6) <= found[-1] <= step_s * (1 + 1e-9)
    assert max(found) > near * step_s


class Gathered(nn.Module):
    """A light op whose parameters are large, in front of a heavy one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16384, bias=False)
        self.last = nn.Parameter(torch.empty(2048, 512))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = torch.softmax(self.first(x), -1)
        return torch.matmul(torch.matmul(shares, shares.transpose(1, 2)), self.last).sum()


def test_what_is_gathered_in_each_use_is_not_charged_once() -> None:
    """A path that ends a stage without passing one of its chunks has no gathers of it. Against all ways to cut and to store."""
    given = {"x": torch.zeros(4, 2048, 8, dtype=torch.bfloat16)}
    graph = capture(build_on_meta(Gathered, torch.bfloat16), given, name="gathered")
    cluster, _ = scale_link_bandwidth(load_cluster("dgx-a100-40g:2"), None, 1, 1 / 20)
    cluster, _ = scale_link_bandwidth(cluster, None, 0, 400.0)
    options = PlanOptions(
        global_batch=16, micro_batch=8, stages=2, schedules=("interleaved_1f1b",), recompute=0, baselines=(),
        data_parallel=8, tensor_parallel=1,
    )  # fmt: skip
    planner, bound = Planner(graph, cluster, None, options, None), graph.bind(batch=8)
    names = [node.name for node in bound.nodes if node.name in bound.parameter_dependent][1:]
    least_s = np.inf
    for storage in ("use", "step", "as_used"):
        strategy = make_plan(graph, cluster, None, replace(options, storage=storage)).strategy
        boxing = BoxingModel(NetworkModel(cluster), strategy.mesh)
        for cuts in combinations(names, 3):
            pipeline = Pipeline(2, cuts, INTERLEAVED)
            cut = _Pipelined(bound, replace(strategy, pipeline=pipeline), boxing, ComputeModel(cluster.device))
            least_s = min(least_s, *[max(cut.ends())])
    structure = next(each for each in planner.structures() if each.stages == 2)
    waits = PipelineBounds(planner.problems, structure, [8], STORAGES, ("interleaved_1f1b",))
    for part in (1.0, 1.05, 1.2):
        found = waits.raised(0, 0.0, 0.0, part * least_s, never)
        assert waits.raised(0, 0.0, 0.0, part * least_s) < 0.9 * least_s < found <= least_s * (1 + 1e-9)


def test_parts_of_a_model_take_no_less_than_is_counted() -> None:
    """Of chunks at random, against the optimum of what lies in them; without a cut nearly all is counted."""
    planner = Planner(graph_of("resnet50"), load_cluster("dgx-a100-40g:4"), None, PlanOptions(global_batch=64), None)
    problems, bound = planner.problems, planner.problems.bound(16)
    structure = next(each for each in planner.structures() if each.stages == 2)
    built = problems.stage_problem(structure, 16, (FASTEST,), again=False)
    assert built.detail is not None
    nodes = [node.name for node in computed(bound)]
    places, at = cut_places(bound, None), {name: place for place, name in enumerate(nodes)}
    work, dice = chunk_work_items(built, nodes, places, 4, lambda: None), np.random.default_rng(0)

    def optimum(first: int, end: int) -> float:
        """Of the clusters whose ops are all of these."""
        inside = [
            variable
            for variable, cluster in enumerate(built.clusters)
            if all(first <= at[node.name] < end for node in cluster.nodes if node.name in at)
        ]
        makers = {node.name: number for number, cluster in enumerate(built.clusters) for node in cluster.nodes}
        for copy in range(len(built.clusters), built.problem.num_variables):
            maker = makers.get(built.anchors[copy])
            ends = {end for edge in built.problem.edges if copy in (edge.u, edge.v) for end in (edge.u, edge.v)}
            if maker in inside and ends & ({*inside} - {maker}):
                inside.append(copy)
        return StageSubproblem(built, inside, 4).at(MemoryMultipliers(0.0, 0.0, 0.0)).least_s if inside else 0.0

    for _ in range(25):
        first, end = sorted(dice.choice(len(nodes), 2, replace=False).tolist())
        cuts = [max(1, first), max(first, 1) + 1 if end <= max(first, 1) else end]
        counted = float(work.of_chunks(cuts)[1, STEP])
        # Ops of clusters that a cut goes through, by themselves.
        split = sum(
            4 * (op.forward_s + op.backward_s)
            for cluster, part in zip(built.clusters, built.detail.parts, strict=False)
            for node, op in zip(cluster.nodes, part.ops, strict=True)
            if node.name in at and cuts[0] <= at[node.name] < cuts[1]
            and not all(cuts[0] <= at[each.name] < cuts[1] for each in cluster.nodes if each.name in at)
        )  # fmt: skip
        assert counted <= (optimum(*cuts) + split) * (1 + 1e-9) + 1e-12
    whole = StageSubproblem(built, range(built.problem.num_variables), 4).at(MemoryMultipliers(0.0, 0.0, 0.0)).least_s
    assert 0.99 * whole <= float(work.columns[STEP].sum()) <= whole * (1 + 1e-9)
