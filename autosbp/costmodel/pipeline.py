"""Step time of a pipeline, stage by stage, microbatch by microbatch.

Every stage runs its passes in the fixed order of the schedule (``costmodel.pipeline_passes``); a pass starts when its stage
is free and its input has arrived. Sends are waited for by the sender too, as in Megatron-LM; but ``gpipe`` and ``1f1b`` are
those of ``torch.distributed.pipelining``, which goes on at once where a pass of the same direction follows, one message
behind the other. Equal stages under 1F1B give the known bubble, (p - 1) / (v m) of the busy time; unequal ones, such as
those with the embedding and the loss, what they really cost. ``message_driven`` has no fixed order and waits for no sends:
``costmodel.message_driven``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.message_driven import StageSeconds, Timed, message_driven
from autosbp.costmodel.pipeline_passes import (
    BACKWARD,
    FORWARD,
    KINDS,
    WEIGHTS,
    Ints,
    Order,
    Pass,
    stage_order,
    stage_passes,
)
from autosbp.errors import InputError
from autosbp.native import LOOPS
from autosbp.pipeline import Pipeline
from autosbp.schedules import INTERLEAVED, ONE_F_ONE_B, Schedule

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One model chunk's passes of one microbatch, in seconds, recomputation within backward.

    ``weights_s`` is what a zero-bubble schedule takes out of backward. ``send_s`` and ``return_s`` are its messages to the
    chunk behind and, of gradients, to the one before; None takes those of ``pipeline_time``.
    """

    forward_s: float
    backward_s: float
    weights_s: float = 0.0
    send_s: float | None = None
    return_s: float | None = None

    @property
    def busy_s(self) -> float:
        return self.forward_s + self.backward_s + self.weights_s


@dataclass(frozen=True, slots=True)
class PipelineTime:
    """``busy_s`` is the busiest stage's own work, ``send_s`` what it waits for its sends; the rest is the bubble. ``ends``
    is when each stage is done."""

    step_s: float
    busy_s: float
    send_s: float
    stage: int
    ends: tuple[float, ...]

    @property
    def bubble_s(self) -> float:
        return self.step_s - self.busy_s - self.send_s


@dataclass(frozen=True, slots=True)
class Span:
    """One pass on its stage, in seconds from the beginning of the step."""

    stage: int
    what: Pass
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Ran:
    """When each stage is done, and when each pass began, by its number (``Orders``)."""

    ready: list[float]
    starts: Sequence[float] | Floats


def pipeline_time(
    chunks: Sequence[Chunk],
    num_stages: int,
    num_micro: int,
    send_s: float,
    schedule: Schedule | None = None,
    weights_lag: int | None = None,
) -> PipelineTime:
    """Simulate one step.

    Args:
        chunks: the model's chunks in order, a multiple of the stages: several a stage interleave.
        send_s: one activation, or its gradient, from a stage to the next.
        schedule: None is Megatron-LM's 1F1B, interleaved where stages have several chunks, which waits for every send.
        weights_lag: as of ``Pipeline``.

    Raises:
        InputError: when chunks do not fill the stages, or interleaved microbatches do not.
    """
    num_virtual, rest = divmod(len(chunks), num_stages)
    if rest or not chunks:
        raise InputError("chunks", len(chunks), f"a multiple of the {num_stages} stages is expected")
    if num_virtual > 1 and num_micro % num_stages:
        raise InputError("num_micro", num_micro, f"a multiple of the {num_stages} stages is expected to interleave")
    kind = schedule or (INTERLEAVED if num_virtual > 1 else ONE_F_ONE_B)
    pipeline = Pipeline(num_stages, tuple(map(str, range(1, len(chunks)))), kind, weights_lag)
    times = chunk_times(chunks, num_stages, send_s)
    if kind.is_message_driven:
        ends = [passes[-1].end_s for passes in _driven(times, num_micro)]
    else:
        ends = _run(pipeline, times, num_micro, beside=schedule is not None and schedule.overlaps_sends).ready
    busy = [num_micro * sum(chunk.busy_s for chunk in chunks[stage::num_stages]) for stage in range(num_stages)]
    stage = max(range(num_stages), key=busy.__getitem__)
    own = times[stage::num_stages]
    sent = 0.0 if kind.is_message_driven else num_micro * sum(time.sent_s for time in own)
    return PipelineTime(max(ends), busy[stage], sent, stage, tuple(ends))


def pass_spans(chunks: Sequence[Chunk], pipeline: Pipeline, num_micro: int) -> list[Span]:
    """When every pass of a step runs, by its stage and in its order; ``chunks`` have times of their own for all messages."""
    times = chunk_times(chunks, pipeline.num_stages, 0.0)
    if pipeline.schedule.is_message_driven:
        stages = enumerate(_driven(times, num_micro))
        return [Span(stage, one.what, one.start_s, one.end_s) for stage, passes in stages for one in passes]
    begun = _run(pipeline, times, num_micro, beside=pipeline.schedule.overlaps_sends).starts
    found = []
    for stage in range(pipeline.num_stages):
        numbers = stage_order(pipeline, stage, num_micro).numbers(len(chunks), num_micro).tolist()
        for at, one in zip(numbers, stage_passes(pipeline, stage, num_micro), strict=True):
            began = float(begun[at])
            found.append(Span(stage, one, began, began + times[one.chunk].own_s[one.kind]))
    return found


def _driven(times: Sequence[Times], num_micro: int) -> list[list[Timed]]:
    seconds = [
        StageSeconds(time.own_s[FORWARD], time.own_s[BACKWARD], time.sends_s[FORWARD], time.sends_s[BACKWARD])
        for time in times
    ]
    return message_driven(seconds, num_micro)


def chunk_times(chunks: Sequence[Chunk], num_stages: int, send_s: float) -> list[Times]:
    """Of each chunk; ``send_s`` are those of messages without a time of their own."""
    return [Times(chunk, at, len(chunks), send_s if num_stages > 1 else None) for at, chunk in enumerate(chunks)]


def _run(pipeline: Pipeline, times: Sequence[Times], num_micro: int, *, beside: bool) -> Ran:
    own_s = [time.own_s[kind] for kind in KINDS for time in times]
    sends_s = [time.sends_s[kind] for kind in KINDS for time in times]
    return run_orders(orders_of(pipeline, num_micro), own_s, sends_s, num_micro, beside=beside)


def run_orders(
    orders: Orders, own_s: Sequence[float], sends_s: Sequence[float], num_micro: int, *, beside: bool
) -> Ran:
    """When passes begin, each after the one before it on its stage and the one that hands it its input. Each turn runs every
    stage as far as what it waits for is there.

    Args:
        own_s, sends_s: of each kind of pass and each chunk, seconds and those of what it sends.
        beside: what a pass sends goes beside the next of the same direction, or else before any.
    """
    if LOOPS is not None:
        return _run_compiled(orders, np.array(own_s), np.array(sends_s), num_micro, beside=beside)
    num_stages = len(orders.firsts) - 1
    nobody = len(own_s) * num_micro
    ends = [-1.0] * nobody + [0.0]  # when what a pass sends is there
    starts = [0.0] * nobody
    ready, at = [0.0] * num_stages, [0] * num_stages
    sent = [0.0] * num_stages
    moved = True
    while moved:
        moved = False
        for stage, (passes, sources, follows) in enumerate(orders.lists):
            now, place, behind = ready[stage], at[stage], sent[stage]
            while place < len(passes):
                arrived = ends[sources[place]]
                if arrived < 0.0:
                    break
                one = passes[place]
                starts[one] = began = now if now > arrived else arrived
                now = began + own_s[one // num_micro]
                behind = (now if now > behind else behind) + sends_s[one // num_micro]
                ends[one] = behind
                place += 1
                if not (beside and follows[place]):
                    now, behind = behind, 0.0
            moved = moved or place > at[stage]
            ready[stage], at[stage], sent[stage] = now, place, behind
    return Ran(ready, starts)


def _run_compiled(orders: Orders, own_s: Floats, sends_s: Floats, num_micro: int, *, beside: bool) -> Ran:
    assert LOOPS is not None
    starts, ready = np.zeros(len(own_s) * num_micro), np.zeros(len(orders.firsts) - 1)
    LOOPS.run_passes(
        orders.firsts, orders.passes, orders.sources, orders.follows, own_s, sends_s, num_micro, beside, starts, ready
    )  # fmt: skip
    return Ran(ready.tolist(), starts)


@dataclass(frozen=True, eq=False)
class Orders:
    """The passes of all stages, one stage behind the other and each in its order; those of a stage begin at its entry of
    ``firsts``, which has one more for the end.

    ``passes`` are numbered by kind, chunk and microbatch; ``sources`` are what each waits for, one number above all others for
    nothing; ``follows`` whether each is of the same direction as the one before it on its stage, 0 or 1.
    """

    firsts: Ints
    passes: Ints
    sources: Ints
    follows: Ints

    @cached_property
    def lists(self) -> list[tuple[list[int], list[int], list[int]]]:
        """Passes, sources and ``follows`` of each stage; the last with one entry more for the end."""
        spans = [slice(first, end) for first, end in pairwise(self.firsts.tolist())]
        columns = self.passes, self.sources, self.follows
        parts = [[column[span].tolist() for column in columns] for span in spans]
        return [(passes, sources, [*follows, 0]) for passes, sources, follows in parts]


def orders_of(pipeline: Pipeline, num_micro: int) -> Orders:
    """Of all stages; where a pipeline is cut does not matter."""
    return _orders(
        pipeline.num_stages, pipeline.num_virtual, pipeline.schedule, pipeline.weights_lag, num_micro
    )  # fmt: skip


@lru_cache(maxsize=32)
def _orders(num_stages: int, num_virtual: int, schedule: Schedule, weights_lag: int | None, num_micro: int) -> Orders:
    chunks = num_stages * num_virtual
    pipeline = Pipeline(num_stages, tuple(map(str, range(1, chunks))), schedule, weights_lag)
    orders = [stage_order(pipeline, stage, num_micro) for stage in range(num_stages)]
    firsts = np.cumsum([0, *(len(order.kinds) for order in orders)])
    passes = np.concatenate([order.numbers(chunks, num_micro) for order in orders])
    sources = np.concatenate([_sources(order, chunks, num_micro) for order in orders])
    kinds = np.concatenate([order.kinds for order in orders])
    follows = np.zeros(len(kinds), dtype=np.int64)
    follows[1:] = kinds[1:] == kinds[:-1]
    follows[firsts[:-1]] = 0
    return Orders(firsts, passes, sources, follows)


class Times:
    """Seconds of a chunk's passes with their sends; ``send_s`` is None where nothing is sent."""

    def __init__(self, chunk: Chunk, at: int, num_chunks: int, send_s: float | None) -> None:
        def sends(own_s: float | None, there: bool) -> float:
            if not there or send_s is None:
                return 0.0
            return send_s if own_s is None else own_s

        ahead, back = sends(chunk.send_s, at + 1 < num_chunks), sends(chunk.return_s, at > 0)
        self.sent_s = ahead + back
        self.own_s = {FORWARD: chunk.forward_s, BACKWARD: chunk.backward_s, WEIGHTS: chunk.weights_s}
        self.sends_s = {FORWARD: ahead, BACKWARD: back, WEIGHTS: 0.0}


def _sources(order: Order, num_chunks: int, num_micro: int) -> Ints:
    """The number of what must have ended before each pass: forward of the chunk before; backward of the chunk behind, or
    the last forward; backward of the same chunk. One more than all numbers stands for nothing."""
    forward, backward, weights = (order.kinds == at for at in range(len(KINDS)))
    behind = backward & (order.chunks + 1 < num_chunks)
    # To the same kind of a neighbour, or to the kind before of the same chunk.
    own = order.numbers(num_chunks, num_micro)
    found = np.where(behind, own + num_micro, own - np.where(forward, 1, num_chunks) * num_micro)
    return np.where(forward & (order.chunks == 0), len(KINDS) * num_chunks * num_micro, found)
