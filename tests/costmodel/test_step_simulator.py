"""The simulated step: what overlaps, what shares, and that nothing gets lost."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from autosbp.api import PlanOptions, make_plan, predict_costs
from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.launch_overhead import LaunchOverhead, with_launch_overhead
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.overlap import Overlap
from autosbp.costmodel.step_collectives import StepCollectives, collectives
from autosbp.costmodel.step_event import GRADIENT_SYNC, PARAMETER_GATHER, TENSOR_PARALLEL, Event
from autosbp.costmodel.step_events import LOSS, Timeline
from autosbp.costmodel.step_simulator import (
    ProgramPart,
    Simulation,
    simulate_activity,
    simulate_duration_s,
    simulate_parts,
)
from autosbp.costmodel.strategy_cost import simulate_phases
from autosbp.testing.strategy_samples import sample_strategies
from autosbp.zoo import zoo_graph

pytestmark = pytest.mark.integration

APART = Overlap()
"""Ops and collectives that do not slow each other down."""


def op(seconds: float) -> Event:
    return Event("op", "compute", "backward", seconds)


def collective(seconds: float, key: str | None = None, level: int = 0, purpose: str = TENSOR_PARALLEL) -> Event:
    return Event("call", "comm", "backward", seconds, level=level, key=key, purpose=purpose)


def wait(*keys: str) -> Event:
    return Event("wait", "wait", "sync", 0.0, after=keys)


def step_s(*events: Event, overlap: Overlap = APART) -> float:
    simulation = Simulation(overlap)
    simulation.run(events)
    return simulation.drain()


def test_overlapped_collectives_are_hidden_behind_ops() -> None:
    assert step_s(collective(2.0, "a"), op(3.0), wait("a")) == pytest.approx(3.0)


def test_a_pass_takes_at_least_its_host_overhead() -> None:
    events = [op(1.0), collective(5.0, "a"), op(0.5), wait("a")]
    assert [event.name for event in with_launch_overhead(events, 1.5, "forward")] == [event.name for event in events]
    waits = list(with_launch_overhead(events, 2.0, "forward"))
    assert waits[:-1] == events and waits[-1].category == "compute" and waits[-1].duration_s == pytest.approx(0.5)


@pytest.mark.parametrize("stages", [1, 2])
def test_small_ops_of_a_gpu_take_what_the_host_needs(stages: int) -> None:
    graph, cluster = zoo_graph("gpt2-demo"), load_cluster("dgx-h200:1")
    options = PlanOptions(global_batch=16, micro_batch=8, stages=stages, recompute=1, baselines=())
    strategy = make_plan(graph, cluster, None, options).strategy
    quick, slow, costs = LaunchOverhead(1e-9, 1e-9), LaunchOverhead(1e-3, 2e-3), []
    for launches in (None, quick, slow):
        calibration = Calibration(cluster, "nccl", "relative", (), launches=launches)
        costs.append(predict_costs(graph, strategy, cluster, calibration))
    assert costs[0] == costs[1]  # a GPU that is asked in no time waits for nothing
    ops = [node for node in graph.nodes if node.name in strategy.signatures]
    least_s = strategy.num_micro * len(ops) * (1e-3 + 1e-3 + 2e-3) / stages  # forward, most of it again, backward
    assert 0.8 * least_s < costs[2].step_time_s < 2.0 * least_s


def test_the_loss_reduction_overlaps_backward() -> None:
    graph, cluster = zoo_graph("mlp-small").bind(batch=8), load_cluster("local:4")
    strategy = next(
        each
        for each in sample_strategies(zoo_graph("mlp-small"), cluster, 20, global_batch=8, micro_batch=8, seed=0)
        if any(call.num_bytes == 4 for call in collectives(graph, each))
    )
    compute = ComputeModel(cluster.device)
    timeline = Timeline(graph, strategy, BoxingModel(NetworkModel(cluster), strategy.mesh), compute)
    loss = [event for event in timeline.events() if event.key == LOSS]
    assert [event.details["num_bytes"] for event in loss] == [4]
    assert [LOSS in event.after for event in timeline.events() if event.category == "wait"][-1]
    events = list(timeline.forward_pass(True))
    simulation = Simulation(APART)
    begun_s = simulation.run(events[: events.index(loss[0]) + 1])
    assert simulation.drain() == pytest.approx(begun_s + loss[0].duration_s)


def test_communication_beyond_the_ops_is_exposed() -> None:
    assert step_s(op(1.0), collective(5.0, "a"), op(3.0), wait("a"), op(1.0)) == pytest.approx(7.0)


def test_the_program_waits_only_for_named_collectives() -> None:
    simulation = Simulation(Overlap())
    assert simulation.run([collective(1.0, "a"), collective(9.0, "b"), wait("a"), op(1.0)]) == pytest.approx(2.0)
    assert simulation.drain() == pytest.approx(10.0)


def test_overlapped_compute_and_communication_slow_each_other() -> None:
    # The collective ends after 2 * 1.5 = 3 s, in which the op has done 3 / 1.25 = 2.4 s of its 3.
    assert step_s(collective(2.0, "a"), op(3.0), overlap=Overlap(0.25, 0.5)) == pytest.approx(3.6)


def test_collectives_on_one_level_share_it_and_on_two_do_not() -> None:
    assert step_s(collective(2.0, "a", 0), collective(2.0, None, 0)) == pytest.approx(4.0)
    assert step_s(collective(2.0, "a", 0), collective(2.0, None, 1)) == pytest.approx(2.0)


def test_collectives_beside_the_program_run_one_after_another_per_level() -> None:
    assert step_s(collective(2.0, "a"), collective(3.0, "b"), op(1.0)) == pytest.approx(5.0)
    assert step_s(collective(2.0, "a"), collective(3.0, "b", 1), op(1.0)) == pytest.approx(3.0)


def test_exposed_time_is_attributed_to_its_purpose_and_the_rest_is_hidden() -> None:
    gather, gradients = collective(2.0, "a", purpose=PARAMETER_GATHER), collective(4.0, "b", purpose=GRADIENT_SYNC)
    found = simulate_activity([gather, op(0.5), wait("a"), collective(1.0), gradients, op(3.0)], APART)
    assert found.compute_s == pytest.approx(3.5)
    assert found.exposed == pytest.approx({PARAMETER_GATHER: 1.5, TENSOR_PARALLEL: 1.0, GRADIENT_SYNC: 1.0})
    assert found.hidden_s == pytest.approx(0.5 + 3.0)
    assert found.seconds == pytest.approx(7.0)


def test_exposed_time_is_attributed_to_queued_predecessors() -> None:
    ahead, wanted = collective(4.0, "a", purpose=GRADIENT_SYNC), collective(1.0, "b", purpose=PARAMETER_GATHER)
    other = collective(9.0, "c", 1)
    found = simulate_activity([ahead, wanted, other, wait("b"), op(4.0)], APART)
    assert found.exposed == pytest.approx({GRADIENT_SYNC: 4.0, PARAMETER_GATHER: 1.0})
    assert found.hidden_s == pytest.approx(9.0)


@pytest.mark.parametrize("seed", range(40))
def test_the_parts_of_any_program_are_its_length_and_no_more_is_exposed_than_is_sent(seed: int) -> None:
    dice = Random(seed)
    events, begun = list[Event](), list[str]()
    for at in range(dice.randrange(2, 30)):
        seconds, level = dice.uniform(0.1, 3.0), dice.randrange(2)
        purpose = dice.choice((TENSOR_PARALLEL, PARAMETER_GATHER, GRADIENT_SYNC))
        kind = dice.choice(("op", "call", "beside", "wait", "optimizer"))
        if kind == "beside":
            begun.append(str(at))
        events.append({
            "op": op(seconds), "optimizer": Event("leaf", "optimizer", "update", seconds),
            "call": collective(seconds, None, level, purpose), "beside": collective(seconds, str(at), level, purpose),
            "wait": wait(*dice.sample(begun, min(len(begun), 1))),
        }[kind])  # fmt: skip
    overlap = Overlap(dice.choice((0.0, 0.5)), dice.choice((0.0, 1.0)))
    found = simulate_activity(events, overlap)
    sums = {
        kind: sum(event.duration_s for event in events if event.category == kind)
        for kind in ("compute", "optimizer", "comm")
    }
    assert found.seconds == pytest.approx(simulate_duration_s(events, overlap))
    for own_s, kind in ((found.compute_s, "compute"), (found.optimizer_s, "optimizer")):
        assert sums[kind] * (1 - 1e-9) <= own_s <= sums[kind] * (1 + overlap.compute) * (1 + 1e-9)
    assert found.exposed_s <= sums["comm"] * (1 + 1e-9)
    assert found.exposed_s + found.hidden_s == pytest.approx(sums["comm"])
    assert all(seconds >= 0.0 for seconds in found.exposed.values())


def test_spans_hold_every_event_once() -> None:
    simulation = Simulation(Overlap(0.1, 0.1))
    events = [collective(2.0, "a"), op(1.0), collective(0.5), op(0.0), collective(1.0, "b"), op(4.0), wait("a", "b")]
    simulation.run(events)
    assert sorted(id(span.event) for span in simulation.spans) == sorted(id(event) for event in events[:-1])
    assert all(span.end_s - span.start_s >= span.event.duration_s - 1e-12 for span in simulation.spans)


@pytest.mark.parametrize("micro_batch", [4, 8, 32])
def test_a_step_lasts_no_longer_than_its_sum_and_no_shorter_than_what_is_waited_for(micro_batch: int) -> None:
    graph, cluster = zoo_graph("gpt2-demo"), load_cluster("local:2x2")
    compute = ComputeModel(cluster.device)
    bound = graph.bind(batch=micro_batch)
    hidden = 0
    for sampled in sample_strategies(graph, cluster, 12, global_batch=32, micro_batch=micro_batch, seed=3):
        strategy = replace(sampled, bucket_bytes=2**18)
        timeline = Timeline(
            bound, strategy, BoxingModel(NetworkModel(cluster), strategy.mesh, compute.copy_bytes_per_s), compute
        )
        phases = timeline.phases()
        total = sum(times * event.duration_s for events, times in phases for event in events)
        waited = sum(times * event.duration_s for events, times in phases for event in events if event.key is None)
        spent = simulate_phases(phases, compute)
        found = spent.seconds
        assert found == pytest.approx(
            sum(times * simulate_duration_s(events, compute.overlap) for events, times in phases)
        )
        slower = 1 + max(compute.overlap.compute, compute.overlap.network)
        assert waited * (1 - 1e-9) <= found <= total * slower * (1 + 1e-9)
        hidden += found < total * (1 - 1e-6)
        charged = StepCollectives(bound, strategy, timeline.flow).phases()
        wanted = [
            (call.kind, call.num_bytes, call.axes, call.cause) for calls, times in charged for call in calls * times
        ]
        listed = [
            (
                *(event.details[key] for key in ("kind", "num_bytes")),
                tuple(event.details["axes"]),
                event.details["cause"],
            )
            for event in timeline.events()
            if event.category == "comm"
        ]
        assert listed == wanted
    assert hidden > 0


def test_parts_are_what_the_program_computes_and_waits_for_and_add_up_to_the_step() -> None:
    events = [
        *(op(1.0), op(0.5), collective(2.0), op(1.0), collective(3.0, "a")),
        *(op(1.0), wait("a"), op(0.25)),
    ]
    expected = [
        ProgramPart(1.5, True),
        ProgramPart(2.0, False, 0),
        ProgramPart(2.0, True),
        ProgramPart(2.0, False, 0),
        ProgramPart(0.25, True),
    ]
    assert simulate_parts(events, APART) == expected
    slowed = simulate_parts(events, Overlap(0.5, 1.0))
    assert sum(part.seconds for part in slowed) == pytest.approx(simulate_duration_s(events, Overlap(0.5, 1.0)))
    assert simulate_parts([collective(1.0, "b")], APART) == [ProgramPart(1.0, False, 0)]
    assert simulate_parts([], APART) == []
