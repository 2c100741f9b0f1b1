"""Step time of a pipeline: 1F1B and its interleaved form, stage by stage, microbatch by microbatch.

Every stage runs its tasks in the fixed order of the schedule (Narayanan et al. 2021, section 2.2; Megatron-LM's
``forward_backward_pipelining_with_interleaving``); a task starts when its stage is free and its input has arrived. Sends
are waited for by the sender too, as there. Equal stages give the known bubble, (p - 1) / (v m) of the busy time; unequal
ones, such as those with the embedding and the loss, what they really cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autosbp.errors import InputError


@dataclass(frozen=True, slots=True)
class Chunk:
    """One model chunk's forward and backward of one microbatch, in seconds, recomputation within backward."""

    forward_s: float
    backward_s: float


@dataclass(frozen=True, slots=True)
class PipelineTime:
    """``busy_s`` is the busiest stage's own work, ``send_s`` what it waits for its sends; the rest is the bubble."""

    step_s: float
    busy_s: float
    send_s: float
    stage: int

    @property
    def bubble_s(self) -> float:
        return self.step_s - self.busy_s - self.send_s


Task = tuple[bool, int, int]
"""(backward, chunk of the model, microbatch)."""


def stage_order(stage: int, num_stages: int, num_virtual: int, num_micro: int) -> list[Task]:
    """The tasks of one stage in the order of the schedule; chunk c of the model lies on stage c mod p."""
    total, group = num_micro * num_virtual, num_stages * num_virtual

    def task(backward: bool, index: int) -> Task:
        virtual = index % group // num_stages if num_virtual > 1 else 0
        micro = index // group * num_stages + index % num_stages if num_virtual > 1 else index
        chunk = num_virtual - 1 - virtual if backward else virtual
        return (backward, chunk * num_stages + stage, micro)

    if num_virtual > 1:
        warmup = min(total, 2 * (num_stages - stage - 1) + (num_virtual - 1) * num_stages)
    else:
        warmup = min(total, num_stages - stage - 1)
    order = [task(False, index) for index in range(warmup)]
    for index in range(total - warmup):
        order += [task(False, warmup + index), task(True, index)]
    return order + [task(True, index) for index in range(total - warmup, total)]


def pipeline_time(chunks: Sequence[Chunk], num_stages: int, num_micro: int, send_s: float) -> PipelineTime:
    """Simulate one step.

    Args:
        chunks: the model's chunks in order, a multiple of the stages: several a stage interleave.
        send_s: one activation, or its gradient, from a stage to the next.

    Raises:
        InputError: when chunks do not fill the stages, or interleaved microbatches do not.
    """
    num_virtual, rest = divmod(len(chunks), num_stages)
    if rest or not chunks:
        raise InputError("chunks", len(chunks), f"a multiple of the {num_stages} stages is expected")
    if num_virtual > 1 and num_micro % num_stages:
        raise InputError("num_micro", num_micro, f"a multiple of the {num_stages} stages is expected to interleave")
    sends = send_s if num_stages > 1 else 0.0
    orders = [stage_order(stage, num_stages, num_virtual, num_micro) for stage in range(num_stages)]
    ready = [0.0] * num_stages
    ends: dict[Task, float] = {}
    at, moved = [0] * num_stages, True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                backward, chunk, micro = order[at[stage]]
                source = _source(order[at[stage]], len(chunks))
                if source is not None and source not in ends:
                    break
                start = max(ready[stage], ends[source] if source is not None else 0.0)
                spent = chunks[chunk].backward_s if backward else chunks[chunk].forward_s
                sent = sends if 0 <= chunk + (-1 if backward else 1) < len(chunks) else 0.0
                ready[stage] = ends[backward, chunk, micro] = start + spent + sent
                at[stage] += 1
                moved = True
    busy = [
        num_micro * sum(chunk.forward_s + chunk.backward_s for chunk in chunks[stage::num_stages])
        for stage in range(num_stages)
    ]
    stage = max(range(num_stages), key=busy.__getitem__)
    here = range(stage, len(chunks), num_stages)
    num_sends = num_micro * sum((chunk + 1 < len(chunks)) + (chunk > 0) for chunk in here)
    return PipelineTime(max(ready), busy[stage], sends * num_sends, stage)


def _source(task: Task, num_chunks: int) -> Task | None:
    """What must have arrived first: forward of the chunk before; backward of the chunk behind, or the last forward."""
    backward, chunk, micro = task
    if backward:
        return (True, chunk + 1, micro) if chunk + 1 < num_chunks else (False, chunk, micro)
    return (False, chunk - 1, micro) if chunk else None
