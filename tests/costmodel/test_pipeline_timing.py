"""Pipeline schedules: the known bubble for equal stages, the slowest stage's pace for unequal ones, and sends."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

import autosbp.costmodel.pipeline_timing as pipeline_module
from autosbp.costmodel.pipeline_timing import ChunkTimes, pass_spans, pipeline_time
from autosbp.errors import InputError
from autosbp.plan.pipeline import Pipeline
from autosbp.plan.schedules import GPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE, Schedule
from autosbp.schedules.passes import BACKWARD, stage_passes


def order_of(stage: int, stages: int, virtual: int, micro: int) -> list[tuple[bool, int, int]]:
    """(backward, chunk, microbatch) of each pass of a stage."""
    cuts = tuple(map(str, range(1, stages * virtual)))
    passes = stage_passes(Pipeline(stages, cuts, INTERLEAVED if virtual > 1 else ONE_F_ONE_B), stage, micro)
    return [(one.kind == BACKWARD, one.chunk, one.micro) for one in passes]


@pytest.mark.parametrize(("stages", "virtual", "micro"), [(1, 1, 4), (4, 1, 8), (8, 3, 64), (4, 2, 4), (35, 3, 280)])
def test_equal_stages_have_the_published_bubble(stages: int, virtual: int, micro: int) -> None:
    """(p - 1) / (v m) of the busy time (Narayanan et al. 2021, section 2.2)."""
    found = pipeline_time([ChunkTimes(1 / virtual, 2 / virtual)] * (stages * virtual), stages, micro, 0.0)
    assert found.busy_s == pytest.approx(3 * micro)
    assert found.bubble_s / found.busy_s == pytest.approx((stages - 1) / (virtual * micro))


@pytest.mark.parametrize(("stages", "virtual", "micro"), [(3, 1, 5), (4, 1, 2), (4, 3, 8)])
def test_every_stage_runs_each_of_its_tasks_once_and_forward_before_backward(
    stages: int, virtual: int, micro: int
) -> None:
    for stage in range(stages):
        order = order_of(stage, stages, virtual, micro)
        tasks = {
            (back, chunk * stages + stage, m)
            for back in (False, True)
            for chunk in range(virtual)
            for m in range(micro)
        }
        assert len(order) == len(tasks) and set(order) == tasks
        place = {task: at for at, task in enumerate(order)}
        assert all(place[False, chunk, m] < place[True, chunk, m] for _, chunk, m in tasks)


def test_one_forward_one_backward_keeps_no_more_microbatches_than_there_are_stages_behind() -> None:
    for stage in range(4):
        held = most = 0
        for backward, _, _ in order_of(stage, 4, 1, 16):
            held += -1 if backward else 1
            most = max(most, held)
        assert most == 4 - stage


def test_a_slow_last_stage_sets_the_pace() -> None:
    chunks = [ChunkTimes(1.0, 2.0)] * 3 + [ChunkTimes(2.0, 4.0)]
    found = pipeline_time(chunks, 4, 32, 0.0)
    assert (found.stage, found.busy_s) == (3, 32 * 6.0)
    assert found.step_s == pytest.approx(32 * 6.0 + 3 * 3.0)  # fill and drain go at the pace of the other stages


def test_sends_are_waited_for_on_both_sides() -> None:
    found = pipeline_time([ChunkTimes(1.0, 1.0)] * 2, 2, 1, 0.5)
    assert found.step_s == pytest.approx(1.0 + 0.5 + 1.0 + 1.0 + 0.5 + 1.0)
    assert found.send_s == 0.5


def test_passes_of_one_direction_do_not_wait_for_the_messages_of_those_before() -> None:
    chunks = [ChunkTimes(1.0, 1.0)] * 2
    assert pipeline_time(chunks, 2, 3, 0.5, GPIPE).step_s == 1.0 + 0.5 + 3 * 1.0 + 1.0 + 0.5 + 3 * 1.0


def test_messages_that_take_longer_than_passes_follow_each_other() -> None:
    # Three of 4 s behind the first pass, the third microbatch through the last stage and back, its gradient's message.
    found = pipeline_time([ChunkTimes(1.0, 1.0, send_s=4.0, gradient_send_s=0.0)] * 2, 2, 3, 0.0, GPIPE)
    assert found.step_s == 1.0 + 3 * 4.0 + 1.0 + 3 * 1.0 + 1.0


def test_one_stage_sends_nothing() -> None:
    assert pipeline_time([ChunkTimes(1.0, 2.0)], 1, 3, 9.0).step_s == 9.0


def test_chunks_that_do_not_fill_the_stages_are_refused() -> None:
    with pytest.raises(InputError, match="chunks"):
        pipeline_time([ChunkTimes(1.0, 1.0)] * 3, 2, 4, 0.0)


def test_interleaved_microbatches_that_do_not_fill_the_stages_are_refused() -> None:
    with pytest.raises(InputError, match="num_micro"):
        pipeline_time([ChunkTimes(1.0, 1.0)] * 4, 2, 3, 0.0)


@pytest.mark.parametrize(("schedule", "virtual"), [(GPIPE, 1), (ONE_F_ONE_B, 1), (INTERLEAVED, 2), (ZERO_BUBBLE, 2)])
def test_spans_hold_every_pass_once_do_not_overlap_on_a_stage_and_end_with_the_step(
    schedule: Schedule, virtual: int
) -> None:
    stages, micro = 4, 8
    chunks = [ChunkTimes(1.0, 2.0, 1.0 if schedule.splits_backward else 0.0, 0.1, 0.1)] * (stages * virtual)
    pipeline = Pipeline(stages, tuple(map(str, range(1, len(chunks)))), schedule)
    spans = pass_spans(chunks, pipeline, micro)
    assert sorted({(span.stage, span.what) for span in spans}, key=str) == sorted(
        {(stage, one) for stage in range(stages) for one in stage_passes(pipeline, stage, micro)}, key=str
    )
    for stage in range(stages):
        own = sorted((span for span in spans if span.stage == stage), key=lambda span: span.start_s)
        assert all(one.end_s <= then.start_s + 1e-9 for one, then in pairwise(own))
        assert sum(span.end_s - span.start_s for span in own) == pytest.approx(
            sum(chunk.busy_s for chunk in chunks[stage::stages]) * micro
        )
    step_s = pipeline_time(chunks, stages, micro, 0.0, schedule).step_s
    assert max(span.end_s for span in spans) == pytest.approx(step_s, abs=0.11)


@pytest.mark.skipif(pipeline_module.LOOPS is None, reason="loops in C are not built here")
@pytest.mark.parametrize("seed", range(60))
def test_compiled_and_python_timings_of_passes_agree(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All schedules with a fixed order, stages and chunks of all kinds, to the last bit."""
    rng = random.Random(seed)
    stages, micro = rng.choice([1, 2, 3, 8]), rng.randint(1, 6)
    schedule = rng.choice([GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE, None])
    virtual = rng.choice([2, 3]) if schedule == INTERLEAVED else 1 + rng.randint(0, 2) * (schedule == ZERO_BUBBLE)
    chunks = [
        ChunkTimes(rng.random(), rng.random(), rng.random(), rng.choice([None, 0.0, rng.random()]), rng.random())
        for _ in range(stages * virtual)
    ]
    send_s, lag = rng.random(), rng.choice([None, 0, 1]) if schedule == ZERO_BUBBLE else None
    pipeline = Pipeline(stages, tuple(map(str, range(1, len(chunks)))), schedule or ONE_F_ONE_B, lag)

    def run() -> tuple[object, object]:
        spans = pass_spans([replace(one, send_s=send_s) for one in chunks], pipeline, stages * micro)
        return pipeline_time(chunks, stages, stages * micro, send_s, schedule, lag), spans

    compiled = run()
    monkeypatch.setattr(pipeline_module, "LOOPS", None)
    assert run() == compiled
