"""What schedules do to memory, one idea each, as arithmetic on bytes: pipelines, recomputation, offloaded state."""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.errors import InputError


def in_flight(schedule: str, stage: int, num_stages: int, num_micro: int, num_virtual: int = 1) -> int:
    """The most microbatches whose activations a stage keeps at once, counted in chunks where it holds ``num_virtual``.

    ``gpipe``: all forward before the first backward (Huang et al. 2019). ``1f1b``: as many as there are stages from here
    to the end (Narayanan et al. 2021, section 2.2). ``interleaved``: the warm-up of 1F1B over ``num_virtual`` chunks a
    stage, and the one that is next.

    Raises:
        InputError: for an unknown schedule, or a stage that there is not.
    """
    if not 0 <= stage < num_stages:
        raise InputError("stage", stage, f"0 to {num_stages - 1} is expected")
    if schedule == "gpipe":
        return num_micro
    if schedule == "1f1b":
        return min(num_stages - stage, num_micro)
    if schedule == "interleaved":
        warmup = 2 * (num_stages - stage - 1) + (num_virtual - 1) * num_stages
        return min(warmup + 1, num_micro * num_virtual)
    raise InputError("schedule", schedule, "one of gpipe, 1f1b, interleaved is expected")


def pipelined_peak(resident_bytes: int, kept_bytes: int, working_bytes: int, num_in_flight: int) -> int:
    """Of a stage: what is there all the time, what each microbatch in flight keeps, and what the one at work has besides
    (gradients of activations, temporaries)."""
    return resident_bytes + num_in_flight * kept_bytes + working_bytes


def recomputed_kept(block_bytes: Sequence[int], boundary_bytes: Sequence[int], interval: int) -> int:
    """What is kept at the fullest moment where every ``interval`` blocks are run forward again in backward: the input of
    each such group, and all that the largest group keeps while it is repeated (Chen et al. 2016; Singh and Bhatele 2022,
    section 5.1). ``boundary_bytes[i]`` is the input of block i, part of ``block_bytes[i]``. 0 repeats nothing.

    Raises:
        InputError: for lengths that differ or a negative interval.
    """
    if len(block_bytes) != len(boundary_bytes):
        raise InputError(
            "boundary_bytes", len(boundary_bytes), f"one for each of {len(block_bytes)} blocks is expected"
        )
    if interval < 0:
        raise InputError("interval", interval, "0 or more blocks are expected")
    if interval == 0:
        return sum(block_bytes)
    most = open_bytes = 0
    for start in range(0, len(block_bytes), interval):
        group = sum(block_bytes[start : start + interval])
        # Groups behind this one are done in backward, so that inputs up to this one are left, and it is in the group.
        most = max(most, open_bytes + group)
        open_bytes += boundary_bytes[start]
    return max(most, open_bytes)


def offloaded_state(state_bytes: int, bucket_bytes: int, num_buffers: int = 2) -> int:
    """What of an optimizer's state is on the device when it lives in host memory and is streamed in buckets: as many as
    are on their way at once (Singh and Bhatele 2022, section 5.2).

    Raises:
        InputError: for no buffers or an empty bucket.
    """
    for field, value in (("bucket_bytes", bucket_bytes), ("num_buffers", num_buffers)):
        if value < 1:
            raise InputError(field, value, "1 or more is expected")
    return min(state_bytes, num_buffers * bucket_bytes)
