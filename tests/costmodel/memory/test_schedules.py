"""Pipelines, recomputation and offloaded state, against schedules counted out task by task."""

from __future__ import annotations

import pytest

from autosbp.costmodel.memory.schedules import in_flight, offloaded_state, pipelined_peak, recomputed_kept
from autosbp.costmodel.pipeline import stage_order
from autosbp.errors import InputError


def counted(stage: int, num_stages: int, num_virtual: int, num_micro: int) -> int:
    """The most forwards without their backward in the order of a stage."""
    most = held = 0
    for backward, _, _ in stage_order(stage, num_stages, num_virtual, num_micro):
        held += -1 if backward else 1
        most = max(most, held)
    return most


@pytest.mark.parametrize("num_micro", [1, 2, 4, 16])
@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_1f1b_keeps_as_many_microbatches_as_its_order_of_tasks(num_stages: int, num_micro: int) -> None:
    for stage in range(num_stages):
        assert in_flight("1f1b", stage, num_stages, num_micro) == counted(stage, num_stages, 1, num_micro)


@pytest.mark.parametrize("num_virtual", [2, 3])
def test_interleaved_stages_keep_as_many_chunks_as_their_order_of_tasks(num_virtual: int) -> None:
    for stage in range(4):
        for num_micro in (4, 16):
            expected = counted(stage, 4, num_virtual, num_micro)
            assert in_flight("interleaved", stage, 4, num_micro, num_virtual) == expected


def test_gpipe_keeps_all_microbatches() -> None:
    assert [in_flight("gpipe", stage, 4, 8) for stage in range(4)] == [8] * 4


def test_a_pipelined_peak_counts_activations_once_per_microbatch_in_flight() -> None:
    assert pipelined_peak(100, 10, 7, in_flight("1f1b", 0, 4, 8)) == 100 + 40 + 7


def test_recomputing_every_block_keeps_inputs_and_one_block() -> None:
    assert recomputed_kept([10] * 8, [1] * 8, 1) == 7 + 10
    assert recomputed_kept([10] * 8, [1] * 8, 2) == 3 + 20
    assert recomputed_kept([10] * 8, [1] * 8, 8) == recomputed_kept([10] * 8, [1] * 8, 0) == 80


def test_the_first_block_may_be_the_fullest_moment_of_recomputation() -> None:
    assert recomputed_kept([50, 10, 10], [1, 1, 1], 1) == 50


def test_state_in_host_memory_takes_its_buffers_or_all_of_a_small_one() -> None:
    assert offloaded_state(10**9, 10**6) == 2 * 10**6
    assert offloaded_state(10**9, 10**6, num_buffers=3) == 3 * 10**6
    assert offloaded_state(10, 10**6) == 10


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: in_flight("zigzag", 0, 2, 4), "schedule"),
        (lambda: in_flight("1f1b", 2, 2, 4), "stage"),
        (lambda: recomputed_kept([1, 2], [1], 1), "boundary_bytes"),
        (lambda: recomputed_kept([1], [1], -1), "interval"),
        (lambda: offloaded_state(1, 0), "bucket_bytes"),
        (lambda: offloaded_state(1, 1, 0), "num_buffers"),
    ],
)
def test_bad_schedules_are_refused_by_name(call: object, field: str) -> None:
    with pytest.raises(InputError) as error:
        call()  # type: ignore[operator]
    assert field in str(error.value)
