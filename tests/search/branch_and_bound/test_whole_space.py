"""Plans over stages, schedules and storage: bounds hold for strategies that search did not choose, and folded models lose
nothing."""

from __future__ import annotations

import itertools
import random
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from autosbp.api import LogicalGraph, PlanOptions, capture, load_cluster, make_plan, predict_costs
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.folded_graph import NUM_KEPT_BLOCKS, fold
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.step_events import Timeline
from autosbp.costmodel.strategy_cost import evaluate
from autosbp.errors import InputError
from autosbp.plan.schedules import ONE_F_ONE_B, RUNNABLE
from autosbp.search import SEARCHERS, SearchOptions
from autosbp.search.bounds.work_bound import work_bound_s
from autosbp.search.branch_and_bound.search_stats import SearchStats
from autosbp.search.planner import Planner
from autosbp.search.problem.builder import ProblemBuilder
from autosbp.search.problem.cost_weights import FASTEST, GATHER_PER_STEP, GATHER_PER_USE, UNSHARDED
from autosbp.search.problem.expand_repeats import expand_repeats
from autosbp.search.problem.mesh_views import mesh_views
from autosbp.search.problem.pins import Pins
from autosbp.search.problem.strategy import strategy_of
from autosbp.search.stages.layout_problems import (
    LayoutProblems,
    OverlapWeights,
    PipelineStructure,
    SubproblemKey,
    least_fullest_stage_s,
)
from autosbp.search.stages.partition import CutPoints, cut
from autosbp.search.stages.stage_meshes import stage_meshes
from tests.executor.pipeline.strategies import LAYOUTS, pipelined
from tests.executor.pipeline.strategies import SCHEDULES as TRIED

pytestmark = pytest.mark.integration

EXPOSURES = (
    OverlapWeights(),
    OverlapWeights(0.5, 0.5),
    OverlapWeights(1.0, 0.0),
    OverlapWeights(0.0, 1.0),
    OverlapWeights(1.0, 1.0),
)


@cache
def graph_of(name: str) -> LogicalGraph:
    return capture(name)


@pytest.mark.some(2)
@pytest.mark.parametrize("model", ["zoo:gpt2-demo", "zoo:mlp-small"])
def test_no_pipelined_strategy_is_below_the_bound_or_beats_the_plan(model: str) -> None:
    graph, cluster = graph_of(model), load_cluster("local:2x2")
    document = make_plan(graph, cluster, None, PlanOptions(global_batch=8)).document
    assert 0 < document["lower_bound_s"] <= document["step_time_s"]
    tried = 0
    for layout in LAYOUTS.values():
        for stages, size in ((2, 2), (4, 1)):
            one = layout(graph, size)
            for schedule, virtual in TRIED:
                strategy = pipelined(graph, one, stages, schedule, virtual)
                if strategy.global_batch == 8:
                    costs = predict_costs(graph, strategy, cluster)
                    assert costs.step_time_s >= document["step_time_s"] * (1 - 1e-9)
                    tried += 1
    assert tried >= 10


@pytest.mark.parametrize("storage", [UNSHARDED, GATHER_PER_STEP, FASTEST])
@pytest.mark.parametrize(("model", "cluster"), [("zoo:gpt2-demo", "local:2x2"), ("zoo:mlp-small", "local:4")])
def test_no_strategy_takes_less_than_its_assignment_costs_however_parameters_are_stored(
    model: str, cluster: str, storage: str
) -> None:
    graph, there = graph_of(model), load_cluster(cluster)
    problems = LayoutProblems(
        graph, NetworkModel(there), ComputeModel(there.device), global_batch=16, optimizer="adamw",
        pins=Pins({}, {}, {}),
    )  # fmt: skip
    for micro_batch in (16, 4):
        parts = []
        for exposure in EXPOSURES:
            space = SubproblemKey(PipelineStructure(1, there.mesh()), micro_batch, storage, overlap_weights=exposure)
            layouts = problems.build(space, None)
            found = SEARCHERS["exact"](layouts.problem, SearchOptions())
            strategy = problems.strategy(layouts, found.assignment)
            costs = evaluate(problems.bound(micro_batch), strategy, problems.boxing(there.mesh()), problems.compute)
            parts.append(found.cost_s / costs.step_time_s)
        assert 0.6 < max(parts) <= 1 + 1e-9


def test_parameters_gathered_for_each_use_are_charged_no_less_than_they_cost() -> None:
    graph, there = graph_of("zoo:gpt2-demo"), load_cluster("local:2x2")
    plan = make_plan(graph, there, None, PlanOptions(global_batch=16, stages=1, storage=GATHER_PER_USE))
    assert plan.strategy.gather == "use"
    least_s = work_bound_s(lambda size: graph.bind(batch=size), [16], 16, there, None)
    assert plan.document["lower_bound_s"] == least_s, "what is charged more than it costs bounds nothing"
    free = make_plan(graph, there, None, PlanOptions(global_batch=16, stages=1))
    assert free.document["lower_bound_s"] <= plan.document["step_time_s"]
    assert plan.document["memory_breakdown"]["optimizer"] < free.document["memory_breakdown"]["optimizer"] * 1.01


def test_a_folded_model_has_the_optimum_of_the_whole_one_which_is_all_that_its_strategy_does() -> None:
    """Without multipliers a problem has the sum of a step, as if nothing ran beside anything else; full messages, of which
    the last ones of a step are not."""
    graph, cluster = graph_of("zoo:gpt2"), load_cluster("dgx-a100-40g:1")
    folding = fold(graph)
    assert folding is not None
    assert folding.count == 12
    assert len(folding.graph.nodes) < len(graph.nodes)
    assert [len(folding.blocks[at]) for at in folding.kept] == [len(folding.blocks[1])] * NUM_KEPT_BLOCKS
    view = mesh_views(cluster.mesh(), 2)[0]
    boxing, compute = BoxingModel(NetworkModel(cluster), view), ComputeModel(cluster.device)
    small, whole = (each.bind(**dict.fromkeys(each.symbols, 16)) for each in (folding.graph, graph))
    found = []
    for each in (small, whole):
        built = ProblemBuilder(each, boxing, compute, num_micro=4, optimizer="adamw").build(None)
        problem = expand_repeats(built, folding) if each is small else built
        assert problem is not None
        result = SEARCHERS["exact"](problem.problem, SearchOptions())
        strategy = strategy_of(
            problem, result.assignment, whole, boxing, global_batch=64, micro_batch=16, optimizer="adamw"
        )
        phases = Timeline(whole, strategy, boxing, compute).phases()
        total_s = sum(times * event.duration_s for events, times in phases for event in events)
        assert result.cost_s <= total_s <= result.cost_s * (1 + 1e-3)
        found.append(result.cost_s)
    assert found[0] == pytest.approx(found[1], rel=1e-9)


@pytest.mark.parametrize("model", ["zoo:gpt2-demo", "zoo:mlp-small", "zoo:vgg13-small"])
def test_models_of_few_or_unlike_blocks_are_not_folded(model: str) -> None:
    assert fold(graph_of(model)) is None


def test_stages_are_asked_for_schedules_too_and_what_does_not_fit_is_refused() -> None:
    graph, cluster = graph_of("zoo:gpt2-demo"), load_cluster("local:2x2")
    for stages in (2, 4):
        plan = make_plan(graph, cluster, None, PlanOptions(global_batch=16, stages=stages, schedules=("1f1b",)))
        assert plan.strategy.num_stages == stages
        assert plan.strategy.pipeline is not None
        assert plan.strategy.pipeline.schedule == ONE_F_ONE_B
        assert plan.strategy.num_devices == 4
    with pytest.raises(InputError, match=r"stages: 3 .*1, 2, 4"):
        make_plan(graph, cluster, None, PlanOptions(global_batch=16, stages=3))
    with pytest.raises(InputError, match="schedules"):
        PlanOptions(schedules=("chimera",))
    with pytest.raises(InputError, match="storage"):
        PlanOptions(storage="zero9")
    options = PlanOptions(global_batch=16, stages=2, schedules=("1f1b", "gpipe"), storage="step")
    assert PlanOptions.from_dict(options.to_dict()) == options


def test_all_devices_are_used_by_equal_stages_of_neighbours() -> None:
    for name in ("local:2x2", "local:6", "dgx-a100-80g:128"):
        cluster = load_cluster(name)
        for stages, mesh in stage_meshes(cluster):
            assert stages * mesh.size == cluster.num_devices
            # A stage takes whole units of a level, or lies in one.
            counts = [level.count for level in cluster.levels]
            assert all(part == count or mesh.level_counts[:at] == (1,) * at or part == 1
                       for at, (part, count) in enumerate(zip(mesh.level_counts, counts, strict=True)))  # fmt: skip


def test_cuts_leave_the_quickest_slowest_chunk() -> None:
    rng = random.Random(0)
    for _ in range(60):
        count = rng.randint(3, 8)
        own = np.array([rng.random() for _ in range(count + 1)])
        before = np.cumsum(own)
        crossing = np.ones(count)
        places = CutPoints(tuple(f"op{at}" for at in range(count)), before[:-1], crossing, float(before[-1]))
        chunks = rng.randint(2, count)
        cuts = cut(places, chunks, 0.01)
        assert cuts is not None

        def slowest(picked: list[int], before: np.ndarray = before, count: int = count) -> float:
            ends = [0.0, *(before[at] for at in picked), float(before[-1])]
            sends = [0.0, *[0.01] * len(picked), 0.0]
            spans = zip(pairwise(ends), pairwise(sends), strict=True)
            return max(two - one + first + last for (one, two), (first, last) in spans)

        best = min(slowest(list(picked)) for picked in _choices(count, chunks - 1))
        assert slowest([places.names.index(name) for name in cuts]) == pytest.approx(best)


def _choices(count: int, size: int) -> list[tuple[int, ...]]:
    from itertools import combinations

    return list(combinations(range(count), size))


def test_searching_all_stages_again_gives_the_same_bytes_and_every_bound_is_below_its_best() -> None:
    graph, cluster = graph_of("zoo:gpt2-demo"), load_cluster("local:2x2")
    plans = [make_plan(graph, cluster, None, PlanOptions(global_batch=16)).to_dict() for _ in range(2)]
    assert plans[0] == plans[1]
    planner = Planner(graph, cluster, None, PlanOptions(global_batch=16), None)
    tally = SearchStats()
    best = planner.search.over(planner.structures(), planner.kind(), tally)
    assert min(tally.bounds) <= best.costs.step_time_s
    assert set(RUNNABLE) == set(PlanOptions().schedules)


def test_the_fullest_stage_is_the_least_of_all_ways_to_deal_out_blocks() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        blocks, stages = int(rng.integers(4, 9)), int(rng.integers(2, 5))
        block_s, before_s, behind_s = rng.random(3) * [1.0, 0.5, 3.0]
        least = min(
            max(
                count * block_s + before_s * (stage == 0) + behind_s * (stage == stages - 1)
                for stage, count in enumerate(counts)
            )
            for counts in itertools.product(range(blocks + 1), repeat=stages)
            if sum(counts) == blocks and counts[0] >= 1
        )
        assert least_fullest_stage_s(blocks, stages, block_s, before_s, behind_s) == pytest.approx(least)
    assert least_fullest_stage_s(8, 1, 2.0, 1.0, 3.0) == 20.0
