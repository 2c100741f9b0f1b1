"""Pipelines, recomputation and offloaded state, against schedules counted out pass by pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autosbp.costmodel.memory.schedules import (
    offloaded_state,
    pipelined_peak,
    recomputed_inputs,
    recomputed_kept,
)
from autosbp.costmodel.pipeline_passes import BACKWARD, FORWARD, stage_passes
from autosbp.errors import InputError
from autosbp.graph.ir import TensorMeta
from autosbp.pipeline import Pipeline
from autosbp.schedules import GPIPE, INTERLEAVED, MESSAGE_DRIVEN, ONE_F_ONE_B, ZERO_BUBBLE, Schedule

HALF, FULL = TensorMeta((1,), "bfloat16"), TensorMeta((1,), "float32")
CASES = [
    (schedule, stages, chunks, micro)
    for schedule, several in (
        (GPIPE, (1,)),
        (ONE_F_ONE_B, (1,)),
        (INTERLEAVED, (2, 3)),
        (ZERO_BUBBLE, (1, 2)),
        (MESSAGE_DRIVEN, (1,)),
    )  # fmt: skip
    for stages in (2, 4)
    for chunks in several
    for micro in (stages, 2 * stages, 8 * stages)
]


def counted(schedule: Schedule, stage: int, stages: int, chunks: int, micro: int) -> tuple[int, int]:
    """The most forwards without their backward in the order of a stage's passes, and the most backwards without their
    weights' at a moment when so many are in flight."""
    pipeline = Pipeline(stages, tuple(f"cut_{at}" for at in range(stages * chunks - 1)), schedule)
    pipeline.check(micro)
    most, owed_then, held, owed = 0, 0, 0, 0
    for one in stage_passes(pipeline, stage, micro):
        held += {FORWARD: 1, BACKWARD: -1}.get(one.kind, 0)
        owed += {FORWARD: 0, BACKWARD: 1}.get(one.kind, -1) if schedule.splits_backward else 0
        if one.kind == FORWARD:
            most, owed_then = max((most, owed_then), (held, owed))
    return most, owed_then


@pytest.mark.parametrize(("schedule", "stages", "chunks", "micro"), CASES)
def test_a_stage_keeps_as_many_microbatches_as_the_order_of_its_passes(
    schedule: Schedule, stages: int, chunks: int, micro: int
) -> None:
    for stage in range(stages):
        found = tuple(each(stage, stages, micro, chunks) for each in (schedule.in_flight, schedule.weights_owed))
        assert found == counted(schedule, stage, stages, chunks, micro)


def test_gpipe_keeps_all_microbatches() -> None:
    assert [GPIPE.in_flight(stage, 4, 8) for stage in range(4)] == [8] * 4


@pytest.mark.parametrize("schedule", [ONE_F_ONE_B, ZERO_BUBBLE])
def test_1f1b_and_zero_bubble_keep_one_microbatch_for_each_stage_to_the_end(schedule: Schedule) -> None:
    assert [schedule.in_flight(stage, 4, 8) for stage in range(4)] == [4, 3, 2, 1]
    assert [schedule.in_flight(stage, 4, 2) for stage in range(4)] == [2, 2, 2, 1]


def test_with_weights_put_off_no_stage_has_more_microbatches_at_all_than_the_first_of_1f1b() -> None:
    for stage in range(4):
        assert ZERO_BUBBLE.in_flight(stage, 4, 16) + ZERO_BUBBLE.weights_owed(stage, 4, 16) == 4


def test_a_pipelined_peak_counts_activations_once_per_microbatch_in_flight() -> None:
    assert pipelined_peak(100, 10, 7, ONE_F_ONE_B.in_flight(0, 4, 8)) == 100 + 40 + 7
    owed = ZERO_BUBBLE.weights_owed(3, 4, 8)
    assert pipelined_peak(100, 10, 7, ZERO_BUBBLE.in_flight(3, 4, 8), 6, owed) == 100 + 10 + 7 + 18


def test_with_recomputation_microbatches_in_flight_keep_inputs_and_the_one_at_work_one_group_besides() -> None:
    blocks, inputs = [10] * 8, [1] * 8
    assert [recomputed_inputs(inputs, interval) for interval in (1, 2, 3, 8)] == [8, 4, 3, 1]
    kept = recomputed_inputs(inputs, 1)
    working = recomputed_kept(blocks, inputs, 1) - kept
    assert pipelined_peak(100, kept, working, ONE_F_ONE_B.in_flight(0, 4, 8)) == 100 + 3 * 8 + (7 + 10)


def test_recomputing_every_block_keeps_inputs_and_one_block() -> None:
    assert recomputed_kept([10] * 8, [1] * 8, 1) == 7 + 10
    assert recomputed_kept([10] * 8, [1] * 8, 2) == 3 + 20
    assert recomputed_kept([10] * 8, [1] * 8, 8) == recomputed_kept([10] * 8, [1] * 8, 0) == 80


def test_the_first_block_may_be_the_fullest_moment_of_recomputation() -> None:
    assert recomputed_kept([50, 10, 10], [1, 1, 1], 1) == 50


def test_half_precision_state_in_host_memory_leaves_4_phi_and_16_bsize_bytes() -> None:
    phi, bsize = 12 * 10**9, 16 * 10**6
    assert offloaded_state(phi, HALF, "adamw", phi) == 20 * phi
    assert offloaded_state(phi, HALF, "adamw", bsize) == 4 * phi + 16 * bsize


def test_more_buffers_take_more_until_all_state_is_there() -> None:
    assert offloaded_state(1000, HALF, "adamw", 10, num_buffers=2) == 4 * 1000 + 16 * 20
    assert offloaded_state(1000, HALF, "adamw", 999, num_buffers=2) == 20 * 1000


def test_parameters_in_full_precision_have_no_copy_to_offload() -> None:
    assert offloaded_state(1000, FULL, "adamw", 10) == 8 * 1000 + 8 * 10
    assert offloaded_state(1000, FULL, "sgd", 10) == 8 * 1000


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: recomputed_kept([1, 2], [1], 1), "boundary_bytes"),
        (lambda: recomputed_kept([1], [1], -1), "interval"),
        (lambda: recomputed_inputs([1], 0), "interval"),
        (lambda: offloaded_state(1, FULL, "sgd", 0), "bucket_elements"),
        (lambda: offloaded_state(1, FULL, "sgd", 1, 0), "num_buffers"),
    ],
)
def test_bad_schedules_are_refused_by_name(call: Callable[[], int], field: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert field in str(error.value)
