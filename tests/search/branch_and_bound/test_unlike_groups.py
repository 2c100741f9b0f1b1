"""Stages on groups of unlike devices: uneven cuts, memory of each stage's own devices, bounds that hold."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from autosbp.api import Plan, PlanOptions, load_cluster, make_plan, pareto_front, predict_costs
from autosbp.cluster.spec import Cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.pipeline_cost import pipelined_step_s
from autosbp.costmodel.pipeline_program import PipelineProgram
from autosbp.costmodel.strategy_cost import evaluate
from autosbp.errors import InfeasibleError, InputError
from autosbp.plan.plan import BUCKET_BYTES
from autosbp.plan.schedules import ONE_F_ONE_B
from autosbp.search.stages.layout_problems import least_fullest_unlike_stage_s
from autosbp.search.stages.partition import CutPoints, StageProfiles, cut
from autosbp.search.why import why
from tests.cluster.test_node_groups import device, levels
from tests.search.plans import graph_of

pytestmark = pytest.mark.integration

ROOM = 2**32


@cache
def mixed(factor: float = 3.0, devices: int = 1, slow_bytes: int = ROOM) -> Cluster:
    """Two nodes of a quick group and two of a slow one."""
    return Cluster.from_dict(
        {
            "schema": "autosbp.cluster/1",
            "name": "mixed",
            "groups": [
                {"name": "fast", "device": device("new", factor, ROOM), "levels": levels(2, devices)},
                {"name": "slow", "device": device("old", memory_bytes=slow_bytes), "levels": levels(2, devices)},
            ],
            "link": {"latency_s": 5e-4, "bandwidth_bytes_per_s": 1e9},
        }
    )


@cache
def planned(model: str, kind: tuple[Any, ...] = (), **options: Any) -> Plan:
    return made(model, kind, **options)


def made(model: str, kind: tuple[Any, ...] = (), **options: Any) -> Plan:
    return make_plan(graph_of(model), mixed(*kind), None, PlanOptions(global_batch=32, baselines=(), **options))


def layers(plan: Plan) -> list[int]:
    """Attention ops of each stage."""
    strategy, graph = plan.strategy, graph_of(plan.document["model"])
    stages = PipelineProgram(graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch)), strategy)
    return [
        sum("scaled_dot_product" in node.op for chunk in stages.of(stage) for node in chunk.graph.nodes)
        for stage in range(strategy.num_stages)
    ]


def test_the_quick_stages_get_more_layers_and_the_step_is_shorter_than_with_as_many() -> None:
    graph, cluster = graph_of("gpt2-demo"), mixed()
    options = {"stages": 2, "micro_batch": 2, "schedules": ("1f1b",)}
    plan = planned("gpt2-demo", **options)
    found = layers(plan)
    assert sum(found) == 4 and found[0] > found[1]
    fast, slow = plan.document["by_stage"]
    assert (fast["group"], slow["group"]) == ("fast", "slow")
    assert fast["busy_s"] == pytest.approx(slow["busy_s"], rel=0.1)
    # The cut of the best plan on identical devices.
    alike = make_plan(graph, cluster.part((1,)), None, PlanOptions(global_batch=32, baselines=(), **options)).strategy
    even = replace(plan.strategy, pipeline=alike.pipeline)
    assert plan.document["step_time_s"] < 0.8 * predict_costs(graph, even, cluster).step_time_s
    # Nor do all devices at once do as well: they go at the pace of the slow ones.
    assert plan.document["step_time_s"] < planned("gpt2-demo", stages=1).document["step_time_s"]


@pytest.mark.parametrize("factor", [1.3, 2.0, 5.0])
@pytest.mark.parametrize("stages", [2, 4])
def test_the_cuts_are_the_best_of_all(factor: float, stages: int) -> None:
    graph, cluster = graph_of("mlp-small"), mixed(factor, 2)
    asked = {"stages": stages, "micro_batch": 4, "schedules": ("1f1b",), "storage": "as_used", "recompute": 0}
    plan = planned("mlp-small", (factor, 2), **asked)
    strategy, bound = plan.strategy, graph.bind(batch=4)
    assert strategy.pipeline is not None
    compute = ComputeModel(cluster.device)
    boxing = BoxingModel(NetworkModel(cluster), strategy.mesh, compute.copy_bytes_per_s)
    names = [node.name for node in graph.nodes if node.name in graph.parameter_dependent][1:]

    def step_s(cuts: tuple[str, ...]) -> float:
        other = replace(strategy, pipeline=replace(strategy.pipeline, cuts=cuts))
        return pipelined_step_s(bound, other, boxing, compute)

    best = min(map(step_s, combinations(names, stages - 1)))
    assert plan.document["step_time_s"] == pytest.approx(best, rel=1e-9)
    assert plan.document["lower_bound_s"] <= best


@dataclass(frozen=True)
class _Work:
    """Of ops, in stages that are not alike; sends take 0.1 at each end."""

    seconds: list[np.ndarray[Any, Any]]
    sizes: np.ndarray[Any, Any]
    limits: tuple[int, ...]
    virtual: int

    def slowest_s(self, cuts: Sequence[int]) -> float:
        ends, stages = (0, *cuts, len(self.sizes)), len(self.seconds)
        worst = 0.0
        for chunk in range(len(cuts) + 1):
            stage, span = chunk % stages, slice(ends[chunk], ends[chunk + 1])
            if 1000 * self.sizes[span].sum() > self.limits[stage] / self.virtual:
                return float("inf")
            sends = 0.1 * ((chunk > 0) + (chunk < len(cuts)))
            worst = max(worst, self.seconds[stage][span].sum() + sends)
        return worst


def test_cuts_of_unlike_stages_are_the_best_of_all_by_enumeration() -> None:
    rng = random.Random(1)
    for _ in range(80):
        count, stages, virtual = rng.randint(5, 9), rng.randint(2, 3), rng.randint(1, 2)
        if stages * virtual > count:
            continue
        own = [np.array([rng.random() for _ in range(count)]) for _ in range(stages)]
        sizes = np.array([rng.random() for _ in range(count)])
        before = [np.cumsum(each) for each in own]
        taken = np.cumsum(sizes)
        limits = tuple(round(1000 * rng.uniform(0.3, 1.0) * taken[-1]) for _ in range(stages))
        crossing = np.full(count - 1, 1.0)
        pace = StageProfiles(
            tuple(each[:-1] for each in before), tuple(float(each[-1]) for each in before),
            1000 * taken[:-1], 1000 * float(taken[-1]), limits,
        )  # fmt: skip
        names = tuple(f"op{at}" for at in range(1, count))
        places = CutPoints(names, before[0][:-1], crossing, float(before[0][-1]), stage_profiles=pace)

        slowest = _Work(own, sizes, limits, virtual).slowest_s
        best = min(map(slowest, combinations(range(1, count), stages * virtual - 1)))
        found = cut(places, stages * virtual, 0.1, stages)
        if best == float("inf"):
            assert found is None
        else:
            assert found is not None
            assert slowest([names.index(name) + 1 for name in found]) == pytest.approx(best)


def test_blocks_on_unlike_stages_are_dealt_out_as_well_as_can_be() -> None:
    rng = np.random.default_rng(2)
    for _ in range(60):
        blocks, stages = int(rng.integers(4, 9)), int(rng.integers(2, 5))
        each, (before_s, behind_s) = rng.random(stages) + 0.1, rng.random(2) * 2
        least = min(
            max(count * s + (at == 0) * before_s + (at == stages - 1) * behind_s
                for at, (count, s) in enumerate(zip(way, each, strict=True)))
            for way in product(range(blocks + 1), repeat=stages) if sum(way) == blocks and way[0]
        )  # fmt: skip
        assert least_fullest_unlike_stage_s(blocks, list(each), float(before_s), float(behind_s)) == pytest.approx(
            least
        )


def test_stages_keep_to_the_memory_of_their_own_devices() -> None:
    free = planned("gpt2-demo", stages=2, micro_batch=2)
    tight = free.document["by_stage"][1]["memory_bytes"] * 8 // 10
    plan = planned("gpt2-demo", (3.0, 1, tight), stages=2, micro_batch=2)
    fast, slow = plan.document["by_stage"]
    assert slow["memory_bytes"] <= slow["memory_limit_bytes"] == tight < fast["memory_bytes"]
    assert fast["memory_bytes"] <= fast["memory_limit_bytes"] == ROOM
    assert plan.document["memory_limit_bytes"] == tight
    assert plan.document["memory_bytes_per_device"] == slow["memory_bytes"]
    with pytest.raises(InfeasibleError, match="memory_limit_bytes"):
        planned("gpt2-demo", memory_limit_bytes=2**20, time_limit_s=1.0)


def test_all_devices_at_once_cost_what_as_many_of_the_slowest_do() -> None:
    graph, cluster = graph_of("gpt2-demo"), mixed()
    plan = planned("gpt2-demo", stages=1)
    slow = Cluster(cluster.name, cluster.levels, cluster.device)
    asked = PlanOptions(global_batch=32, baselines=(), stages=1, bucket_bytes=BUCKET_BYTES)  # groups have one size
    same = make_plan(graph, slow, None, asked)
    assert plan.strategy == same.strategy
    for told in ("step_time_s", "lower_bound_s"):
        assert plan.document[told] == same.document[told] > 0.0
    assert "by_stage" not in plan.document


def test_a_stage_costs_what_it_does_on_a_cluster_of_its_devices() -> None:
    graph, cluster, strategy = graph_of("gpt2-demo"), mixed(), planned("gpt2-demo", stages=2, micro_batch=2).strategy
    costs = predict_costs(graph, strategy, cluster)
    for stage in (0, 1):
        part = cluster.part((stage,))
        compute = ComputeModel(part.device)
        boxing = BoxingModel(NetworkModel(part), strategy.mesh, compute.copy_bytes_per_s)
        alone = evaluate(graph.bind(batch=2), strategy, boxing, compute)
        # Of a cluster without groups the costs are of the stage that is done last, which is the first.
        if stage == 0:
            assert costs.stages[0].busy_s == pytest.approx(alone.compute_s + alone.exposed_comm_s, rel=0.05)
        assert (costs.stages[stage].busy_s < alone.step_time_s) or stage == 1


def test_no_strategy_of_stages_is_below_the_bound() -> None:
    graph, cluster = graph_of("gpt2"), mixed(2.0, 2)
    plan = planned("gpt2", (2.0, 2), micro_batch=4)
    bound = plan.document["lower_bound_s"]
    assert 0 < bound <= plan.document["step_time_s"]
    rng = random.Random(3)
    for stages in (2, 4):
        strategy = planned("gpt2", (2.0, 2), stages=stages, micro_batch=4).strategy
        assert strategy.pipeline is not None
        names = [node.name for node in graph.nodes if node.name in graph.parameter_dependent][1:]
        for _ in range(3):
            cuts = tuple(sorted(rng.sample(names, stages - 1), key=graph.positions.__getitem__))
            other = replace(strategy, pipeline=replace(strategy.pipeline, cuts=cuts, schedule=ONE_F_ONE_B))
            assert predict_costs(graph, other, cluster).step_time_s >= bound


def test_the_same_question_gets_the_same_plan_that_reads_back_and_says_what_stages_do() -> None:
    graph = graph_of("mlp-small")
    options = PlanOptions(global_batch=32, stages=2)
    plans = [make_plan(graph, mixed(2.0, 2), None, options) for _ in range(2)]
    assert plans[0].to_dict() == plans[1].to_dict()
    again = Plan.from_dict(plans[0].to_dict())
    assert again.cluster == mixed(2.0, 2)
    baseline = next(iter(again.document["baseline_strategies"]))
    assert "by_stage" not in again.with_baseline(baseline).document or again.baseline_strategy(baseline).pipeline


def test_unsupported_options_of_grouped_clusters_are_refused() -> None:
    graph, plan = graph_of("gpt2-demo"), planned("gpt2-demo", stages=2, micro_batch=2)
    with pytest.raises(InputError, match="identical devices"):
        pareto_front(graph, mixed(), num_points=2)
    with pytest.raises(InputError, match="identical devices"):
        why(graph, plan, "linear_0")
    with pytest.raises(InputError, match="not supported for clusters with groups"):
        from autosbp.costmodel.calibration import Calibration

        make_plan(graph, mixed(), Calibration(load_cluster("local:4x1"), "gloo", "relative", ()))


@pytest.mark.parametrize(
    "asked", [{"data_parallel": 2}, {"tensor_parallel": 1, "stages": 2}, {"pins": {"linear_1": "S0"}, "stages": 2}]
)
@pytest.mark.some(2)
def test_degrees_and_pins_hold_on_groups_too(asked: dict[str, Any]) -> None:
    plan = made("gpt2-demo", (3.0, 2), **asked)
    assert plan.strategy.num_stages == asked.get("stages", plan.strategy.num_stages)
    assert plan.document["lower_bound_s"] <= plan.document["step_time_s"]
