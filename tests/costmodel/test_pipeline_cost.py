"""Costs of strategies with a pipeline: their parts, their traffic against the listed messages, memory in flight."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from autosbp.api import load_cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.calibration import Calibration, CollectiveFit, Correction
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.compute_contention import ComputeSharing
from autosbp.costmodel.network import NetworkModel, beta_factor
from autosbp.costmodel.overlap import Overlap
from autosbp.costmodel.p2p_cost import LinkModel
from autosbp.costmodel.pipeline_cost import _Pipelined, pipeline_spans
from autosbp.costmodel.pipeline_program import PipelineProgram, StageCall
from autosbp.costmodel.pipeline_timing import PassSpan
from autosbp.costmodel.step_events import LOSS, Timeline
from autosbp.costmodel.step_simulator import ProgramPart
from autosbp.costmodel.strategy_cost import evaluate
from autosbp.costmodel.traffic_by_level import level_seconds
from autosbp.errors import InputError
from autosbp.plan.pipeline import Pipeline
from autosbp.plan.plan import Costs, Strategy
from autosbp.plan.schedules import GPIPE, ONE_F_ONE_B, ZERO_BUBBLE, Schedule
from autosbp.schedules.passes import BACKWARD, FORWARD, WGRAD, stage_passes
from tests.executor.conftest import graph_of
from tests.executor.pipeline.strategies import LAYOUTS, SCHEDULES, pipelined

pytestmark = pytest.mark.integration

CLUSTER = load_cluster("local:2x2")


@cache
def inside(layout: str) -> Strategy:
    return LAYOUTS[layout](graph_of("gpt2"), 2)


@cache
def costs(layout: str, schedule: Schedule | None = None, virtual: int = 1, batch: int = 8) -> Costs:
    strategy = staged(layout, schedule, virtual, batch) if schedule else replace(inside(layout), global_batch=batch)
    graph = graph_of("gpt2").bind(batch=2)
    return evaluate(
        graph, strategy, BoxingModel(NetworkModel(CLUSTER), strategy.mesh), ComputeModel(CLUSTER.device)
    )  # fmt: skip


def staged(layout: str, schedule: Schedule, virtual: int = 1, batch: int = 8) -> Strategy:
    return pipelined(graph_of("gpt2"), replace(inside(layout), global_batch=batch), 2, schedule, virtual)


def sent_bytes(strategy: Strategy, stage: int) -> float:
    """What a rank of a stage sends, message by message."""
    total = 0.0
    for call in PipelineProgram(graph_of("gpt2").bind(batch=2), strategy).calls(stage):
        ranks = len(call.stages) if isinstance(call, StageCall) else strategy.mesh.group_size(call.axes)
        received = isinstance(call, StageCall) and call.kind == "p2p" and call.stages[0] != stage
        total += 0.0 if received else beta_factor(call.kind, ranks) * call.num_bytes
    return total


@pytest.mark.parametrize("layout", ["data parallel", "tensor parallel", "ZeRO-1", "ZeRO-3"])
@pytest.mark.parametrize(("schedule", "virtual"), SCHEDULES)
def test_traffic_is_that_of_the_listed_messages_of_the_stage_that_sends_most(
    layout: str, schedule: Schedule, virtual: int
) -> None:
    strategy = staged(layout, schedule, virtual)
    expected = max(sent_bytes(strategy, stage) for stage in (0, 1))
    assert costs(layout, schedule, virtual).comm_bytes_per_device == round(expected)


@pytest.mark.parametrize(("schedule", "virtual"), SCHEDULES)
@pytest.mark.parametrize("layout", ["data parallel", "tensor parallel", "ZeRO-1", "ZeRO-3"])
def test_the_parts_make_the_step_and_no_more_is_exposed_than_the_stage_sends(
    layout: str, schedule: Schedule, virtual: int
) -> None:
    found, strategy = costs(layout, schedule, virtual), staged(layout, schedule, virtual)
    parts = found.compute_s + found.exposed_comm_s + found.bubble_s + found.optimizer_s
    assert found.step_time_s == pytest.approx(parts)
    assert min(found.exposed_comm_s, found.compute_s, found.optimizer_s) > 0.0
    assert found.bubble_s > 0.0 or layout != "data parallel"
    assert min(found.bubble_s, found.hidden_comm_s, *found.exposed.values()) >= 0.0
    boxing = BoxingModel(NetworkModel(CLUSTER), strategy.mesh)
    every = level_seconds(graph_of("gpt2").bind(batch=2), strategy, boxing, ComputeModel(CLUSTER.device))
    assert found.exposed_comm_s <= sum(every.values()) * (1 + 1e-9)
    assert found.memory_bytes_per_device == sum(found.memory.values())


@pytest.mark.parametrize(("schedule", "virtual"), SCHEDULES)
def test_stages_that_share_cores_are_faster_with_equal_traffic_and_memory(schedule: Schedule, virtual: int) -> None:
    strategy = staged("tensor parallel", schedule, virtual)
    graph = graph_of("gpt2").bind(batch=2)
    boxing = BoxingModel(NetworkModel(CLUSTER), strategy.mesh)

    def of(sharing: ComputeSharing | None) -> tuple[Costs, list[PassSpan]]:
        compute = ComputeModel(CLUSTER.device, Calibration(CLUSTER, "gloo", "relative", (), sharing=sharing))
        return evaluate(graph, strategy, boxing, compute), pipeline_spans(graph, strategy, boxing, compute)

    alone, spans = of(None)
    assert of(ComputeSharing(1.0, (0, 1, 0, 1))) == of(ComputeSharing(2.0, (0, 1, 2, 3))) == (alone, spans)
    shared, quicker = of(ComputeSharing(2.0, (0, 1, 0, 1)))
    assert (shared.memory, shared.comm_bytes_per_device) == (alone.memory, alone.comm_bytes_per_device)
    parts = shared.compute_s + shared.exposed_comm_s + shared.bubble_s + shared.optimizer_s
    assert shared.step_time_s == pytest.approx(parts)
    as_calibrated, slower = of(ComputeSharing(1.0 + 1e-9, (0, 1, 0, 1)))
    saved_s = as_calibrated.step_time_s - shared.step_time_s
    assert alone.compute_s / 4 < saved_s < 2 * alone.compute_s  # both stages' passes, at twice their speed at most
    assert [(span.stage, span.what) for span in quicker] == [(span.stage, span.what) for span in spans]
    assert max(span.end_s for span in quicker) < max(span.end_s for span in slower)


def test_messages_slow_stages_on_cores_of_their_own_where_that_was_measured() -> None:
    strategy, graph = staged("tensor parallel", GPIPE), graph_of("gpt2").bind(batch=2)
    boxing = BoxingModel(NetworkModel(CLUSTER), strategy.mesh)

    def step_s(overlap: Overlap) -> float:
        compute = ComputeModel(CLUSTER.device, Calibration(CLUSTER, "gloo", "relative", (), overlap=overlap))
        return evaluate(graph, strategy, boxing, compute).step_time_s

    assert step_s(Overlap(8.0, 0.5)) < 0.95 * step_s(Overlap(8.0, 0.5, 4.0))


def test_gradients_of_weights_gathered_once_a_step_can_wait_those_of_copies_for_one_use_cannot() -> None:
    graph = graph_of("gpt2").bind(batch=2)

    def waiting_s(layout: str) -> float:
        strategy = staged(layout, ZERO_BUBBLE)
        boxing = BoxingModel(NetworkModel(CLUSTER), strategy.mesh)
        spans = pipeline_spans(graph, strategy, boxing, ComputeModel(CLUSTER.device))
        return sum(span.end_s - span.start_s for span in spans if span.what.kind == WGRAD)

    assert waiting_s("ZeRO-1") == pytest.approx(waiting_s("data parallel"))
    assert waiting_s("ZeRO-1") > 0.0 == waiting_s("ZeRO-3")


def test_delayed_gradients_are_sent_after_all_passes_with_the_same_bytes() -> None:
    graph = graph_of("gpt2").bind(batch=2)
    kinds = {}
    for schedule in (ONE_F_ONE_B, ZERO_BUBBLE):
        calls = PipelineProgram(graph, staged("ZeRO-1", schedule)).calls(1)
        last = max(at for at, call in enumerate(calls) if call.kind == "p2p")
        behind = [call for call in calls[last + 1 :] if call.kind == "reduce_scatter"]
        every = [call for call in calls if call.kind == "reduce_scatter"]
        assert every
        assert (behind == every) == (schedule == ZERO_BUBBLE)
        kinds[schedule] = every
    assert kinds[ONE_F_ONE_B] == kinds[ZERO_BUBBLE]


def test_a_shorter_wgrad_lag_lowers_memory_and_increases_the_bubble() -> None:
    graph = graph_of("gpt2").bind(batch=1)
    strategy = pipelined(
        graph_of("gpt2"), replace(LAYOUTS["whole"](graph_of("gpt2"), 1), global_batch=16), 4, ZERO_BUBBLE
    )
    boxing = BoxingModel(NetworkModel(CLUSTER), strategy.mesh)

    def of(lag: int | None) -> Costs:
        assert strategy.pipeline is not None
        with_lag = replace(strategy, pipeline=replace(strategy.pipeline, weights_lag=lag))
        return evaluate(graph, with_lag, boxing, ComputeModel(CLUSTER.device))

    found = [of(lag) for lag in (0, 1, 2, 3)]
    assert of(None) == of(9) == found[3]
    assert [each.step_time_s for each in found] == sorted((each.step_time_s for each in found), reverse=True)
    assert found[0].step_time_s > found[3].step_time_s
    assert [each.memory_bytes_per_device for each in found] == sorted(each.memory_bytes_per_device for each in found)
    assert found[0].memory_bytes_per_device < found[3].memory_bytes_per_device


def test_a_stage_does_a_part_of_the_work_of_the_strategy_without_a_pipeline() -> None:
    whole, stage = costs("data parallel").compute_s, costs("data parallel", ONE_F_ONE_B).compute_s
    assert whole / 3 < stage < whole


def test_more_microbatches_take_a_smaller_share_of_waiting() -> None:
    shares = [
        costs("data parallel", ONE_F_ONE_B, batch=batch).bubble_s
        / costs("data parallel", ONE_F_ONE_B, batch=batch).step_time_s
        for batch in (8, 16, 64)
    ]
    assert shares[0] > shares[1] > shares[2]


def test_memory_in_flight_grows_with_microbatches_under_gpipe_and_not_under_1f1b() -> None:
    kept = {
        (schedule, batch): costs("data parallel", schedule, batch=batch).memory["activations"]
        for schedule in (GPIPE, ONE_F_ONE_B)
        for batch in (8, 16)
    }
    assert kept[GPIPE, 16] > 1.5 * kept[GPIPE, 8]
    assert kept[ONE_F_ONE_B, 16] == kept[ONE_F_ONE_B, 8] < kept[GPIPE, 8]


@pytest.mark.parametrize(("stages", "virtual", "micro"), [(2, 1, 4), (4, 1, 8), (4, 2, 8), (3, 3, 9), (4, 1, 4)])
def test_zero_bubble_passes_each_microbatch_thrice_in_order_and_keeps_no_more_than_1f1b(
    stages: int, virtual: int, micro: int
) -> None:
    pipeline = Pipeline(stages, tuple(map(str, range(1, stages * virtual))), ZERO_BUBBLE)
    for stage in range(stages):
        order = stage_passes(pipeline, stage, micro)
        place = {(one.kind, one.chunk, one.micro): at for at, one in enumerate(order)}
        assert len(place) == len(order) == 3 * micro * virtual
        for chunk in pipeline.chunks_of(stage):
            for at in range(micro):
                assert place[FORWARD, chunk, at] < place[BACKWARD, chunk, at] < place[WGRAD, chunk, at]
        open_now = most = 0
        for one in order:
            open_now += {FORWARD: 1, BACKWARD: 0, WGRAD: -1}[one.kind]
            most = max(most, open_now)
        if virtual == 1:
            assert most <= stages


@pytest.mark.parametrize("schedule", [GPIPE, ONE_F_ONE_B])
def test_no_pass_waits_for_the_loss_reduction(schedule: Schedule) -> None:
    strategy, compute = staged("data parallel", schedule), ComputeModel(CLUSTER.device)
    compute.sharing = ComputeSharing(1.5, (0, 1, 0, 1))
    graph = graph_of("gpt2").bind(batch=2)
    found = _Pipelined(graph, strategy, BoxingModel(NetworkModel(CLUSTER), strategy.mesh), compute)
    last = found.stages.chunks[-1]
    events = list(Timeline(last.graph, strategy, *found.models[1], last.flow).forward_pass(False))
    assert [event.key for event in events if event.category == "comm"] == [LOSS]
    computed_s = sum(event.duration_s for event in events if event.category == "compute")
    assert found.chunk_pass_times()[-1].forward_s == pytest.approx(computed_s)
    assert found.chunks[-1].parts[FORWARD] == (ProgramPart(pytest.approx(computed_s), True),)


def test_corrections_of_collectives_apply_to_messages_between_stages() -> None:
    fits = tuple(CollectiveFit("p2p", shape, 1e-3, 1e-8, 1.0, 0.0, 0.0, ()) for shape in ((1, 2), (2, 1)))
    measured = Calibration(CLUSTER, "gloo", "relative", fits)
    taught = replace(measured, corrections=(Correction(1.0, 1.5, 0.0, 1),))
    before, after = (
        LinkModel(NetworkModel(CLUSTER, each), 1e12).exchange_s({(0, 2): 2**20, (1, 3): 2**20})
        for each in (measured, taught)
    )
    assert before == pytest.approx(2 * (1e-3 + 2**20 * 1e-8 / 2))
    assert after == pytest.approx(1.5 * before)


def test_more_stages_than_the_cluster_has_devices_for_are_refused() -> None:
    strategy = pipelined(graph_of("gpt2"), replace(inside("data parallel"), global_batch=12), 3, ONE_F_ONE_B)
    with pytest.raises(InputError, match="the cluster has 4 devices") as caught:
        evaluate(
            graph_of("gpt2").bind(batch=2),
            strategy,
            BoxingModel(NetworkModel(CLUSTER), strategy.mesh),
            ComputeModel(CLUSTER.device),
        )
    assert caught.value.field == "strategy.pipeline"
