"""What schedules do to memory, one idea each, as arithmetic on bytes: pipelines, recomputation, offloaded state.

``rank_memory`` counts one program without data; these say how often what a microbatch keeps is there, or how little of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autosbp.costmodel.memory.state import optimizer_bytes_per_element
from autosbp.errors import InputError
from autosbp.graph.ir import DTYPE_BYTES, TensorMeta
from autosbp.pipeline import GPIPE, INTERLEAVED, MESSAGE_DRIVEN, ONE_F_ONE_B, ZERO_BUBBLE

_PER_STAGE_BEHIND: Mapping[str, int] = {ONE_F_ONE_B: 1, INTERLEAVED: 2, ZERO_BUBBLE: 1, MESSAGE_DRIVEN: 1}
"""Forward passes of a stage before its first backward one, for each stage behind it."""
_KNOWN = (GPIPE, *_PER_STAGE_BEHIND)


def in_flight(schedule: str, stage: int, num_stages: int, num_micro: int, num_virtual: int = 1) -> int:
    """The most microbatches between their forward and backward on a stage at once; where it holds ``num_virtual`` chunks,
    the most pairs of microbatch and chunk.

    Each schedule has a warm-up of forward passes, then one forward and one backward in turn. ``gpipe``: all forward
    before the first backward (Huang et al. 2019). ``1f1b``: as many as there are stages from here to the end (Narayanan
    et al. 2021, section 2.2). ``interleaved_1f1b``: twice the stages behind this one, and the chunks before the last.
    ``zero_bubble``: as ``1f1b`` (ZB-H1; Qi et al. 2023, section 2.1), besides which ``weights_owed`` keep a part.
    ``message_driven``: as many as it has registers (``costmodel.message_driven``), which is as many.

    Raises:
        InputError: for an unknown schedule, a stage that there is not, or chunks that the schedule does not take.
    """
    _check(schedule, stage, num_stages, num_micro, num_virtual)
    passes = num_micro * num_virtual
    if schedule == GPIPE:
        return passes
    warmup = _PER_STAGE_BEHIND[schedule] * (num_stages - stage - 1) + (num_virtual - 1) * num_stages
    return min(warmup + 1, passes)


def weights_owed(schedule: str, stage: int, num_stages: int, num_micro: int, num_virtual: int = 1) -> int:
    """How many microbatches have had their backward but not the gradients of their weights, when most are in flight: of
    each, inputs of products with weights and gradients of their outputs are there still. Only ``zero_bubble`` puts those
    off, ``stage`` backward passes long.

    Raises:
        InputError: as ``in_flight``.
    """
    _check(schedule, stage, num_stages, num_micro, num_virtual)
    passes = num_micro * num_virtual
    steady = passes - in_flight(schedule, stage, num_stages, num_micro, num_virtual)
    return min(stage, steady) if schedule == ZERO_BUBBLE else 0


def _check(schedule: str, stage: int, num_stages: int, num_micro: int, num_virtual: int) -> None:
    if schedule not in _KNOWN:
        raise InputError("schedule", schedule, f"one of {', '.join(_KNOWN)} is expected")
    if not 0 <= stage < num_stages:
        raise InputError("stage", stage, f"0 to {num_stages - 1} is expected")
    if num_micro < 1:
        raise InputError("num_micro", num_micro, "1 or more is expected")
    if num_virtual < 1 or (num_virtual > 1 and schedule in (GPIPE, ONE_F_ONE_B, MESSAGE_DRIVEN)):
        raise InputError("num_virtual", num_virtual, f"chunks a stage that {schedule} takes are expected")


def pipelined_peak(
    resident_bytes: int,
    kept_bytes: int,
    working_bytes: int,
    num_in_flight: int,
    owed_bytes: int = 0,
    num_owed: int = 0,
) -> int:
    """Of a stage: what is there all the time, what each microbatch in flight keeps, what the one at work has besides
    (gradients of activations, temporaries), and what the ones whose weights are owed a gradient hold.

    With recomputation, a microbatch keeps ``recomputed_inputs``, and the one at work has the rest of
    ``recomputed_kept``."""
    return resident_bytes + num_in_flight * kept_bytes + working_bytes + num_owed * owed_bytes


def recomputed_inputs(boundary_bytes: Sequence[int], interval: int) -> int:
    """What a microbatch keeps until its backward begins: the input of every group of ``interval`` blocks.

    Raises:
        InputError: for an interval below 1.
    """
    if interval < 1:
        raise InputError("interval", interval, "1 or more blocks are expected")
    return sum(boundary_bytes[::interval])


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


def offloaded_state(
    num_elements: int, meta: TensorMeta, optimizer: str, bucket_elements: int, num_buffers: int = 1
) -> int:
    """Parameters, gradients and optimizer state on the device when all that only the optimizer reads lives in host memory
    and is fetched in buckets (Singh and Bhatele 2022, section V-B).

    What forward and backward work with stays: parameters and gradients as short as they are stored. A bucket holds the
    moments and, of parameters stored shorter than fp32, an fp32 copy and the gradient made fp32: with half precision and
    Adam 16 bytes an element, so that 20 phi become 4 phi + 16 bsize. A bucket of all elements is no offload.

    Args:
        num_elements: that this device trains (phi).
        meta: of parameters as they are stored.
        bucket_elements: of one bucket (bsize).
        num_buffers: buckets there at once: 1 is fetched, worked on and written back in turn, 2 overlap.

    Raises:
        InputError: for no buffers or an empty bucket.
    """
    for field, value in (("bucket_elements", bucket_elements), ("num_buffers", num_buffers)):
        if value < 1:
            raise InputError(field, value, "1 or more is expected")
    width = DTYPE_BYTES[meta.dtype]
    fetched = optimizer_bytes_per_element(meta, optimizer) + (4 if width < 4 else 0)
    return num_elements * 2 * width + min(num_elements, num_buffers * bucket_elements) * fetched
