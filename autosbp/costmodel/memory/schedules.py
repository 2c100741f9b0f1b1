"""What schedules do to memory, one idea each, as arithmetic on bytes: pipelines, recomputation, offloaded state.

``rank_memory`` counts one program without data; these say how often what a microbatch keeps is there, or how little of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.costmodel.memory.state import optimizer_bytes_per_element
from autosbp.errors import InputError
from autosbp.graph.ir import DTYPE_BYTES, TensorMeta


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
