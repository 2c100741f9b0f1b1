"""Step time of a pipeline, simulated per stage and microbatch.

Every stage runs its passes in the fixed order of the schedule (``schedules.passes``); a pass starts when its stage is
free and its input has arrived. The sender blocks on its sends too, as in Megatron-LM. ``gpipe`` and ``1f1b`` follow
``torch.distributed.pipelining`` instead: the sender continues at once if a pass of the same direction follows, with
messages one after another. Equal stages under 1F1B give the known bubble, (p - 1) / (v m) of the busy time; unequal
stages, such as those with the embedding and the loss, give their actual cost. ``message_driven`` has no fixed order and
blocks on no sends: ``schedules.message_driven``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from autosbp.errors import InputError
from autosbp.native import LOOPS
from autosbp.plan.pipeline import Pipeline
from autosbp.plan.schedules import INTERLEAVED, ONE_F_ONE_B, Schedule
from autosbp.schedules.message_driven import StageSeconds, StageTimeline, message_driven
from autosbp.schedules.passes import BACKWARD, FORWARD, KINDS, WGRAD, Ints, Order, Pass, stage_order, stage_passes

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ChunkTimes:
    """Passes of one microbatch through one model chunk, in seconds; backward includes recomputation.

    ``weights_s`` is the weight-gradient part that a zero-bubble schedule splits from backward. ``send_s`` and
    ``return_s`` are the messages to the next chunk and, for gradients, to the previous one; None uses the time passed
    to ``pipeline_time``.
    """

    forward_s: float
    backward_s: float
    wgrad_s: float = 0.0
    send_s: float | None = None
    gradient_send_s: float | None = None

    @property
    def busy_s(self) -> float:
        return self.forward_s + self.backward_s + self.wgrad_s


@dataclass(frozen=True, slots=True)
class PipelineTime:
    """Result of ``pipeline_time``.

    ``busy_s`` is the busiest stage's own work and ``send_s`` its wait for sends; the rest is the bubble. ``ends`` is
    the finish time of each stage.
    """

    step_s: float
    busy_s: float
    send_s: float
    stage: int
    ends: tuple[float, ...]

    @property
    def bubble_s(self) -> float:
        return self.step_s - self.busy_s - self.send_s


@dataclass(frozen=True, slots=True)
class PassSpan:
    """One pass on its stage, in seconds from the start of the step."""

    stage: int
    what: Pass
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class PassTimeline:
    """Finish time of each stage (``ready``), and start of each pass by its number (``PassOrders``)."""

    ready: list[float]
    starts: Sequence[float] | Floats


def pipeline_time(
    chunks: Sequence[ChunkTimes],
    num_stages: int,
    num_micro: int,
    send_s: float,
    schedule: Schedule | None = None,
    weights_lag: int | None = None,
) -> PipelineTime:
    """Simulate one step.

    Args:
        chunks: the model's chunks in order, a multiple of the stages; several per stage are interleaved.
        send_s: one activation, or its gradient, from a stage to the next.
        schedule: None is Megatron-LM's 1F1B, interleaved if stages have several chunks, which blocks on every send.
        weights_lag: as in ``Pipeline``.

    Raises:
        InputError: if chunks do not fill the stages, or interleaved microbatches do not.
    """
    num_virtual, rest = divmod(len(chunks), num_stages)
    if rest or not chunks:
        raise InputError("chunks", len(chunks), f"expected a multiple of the {num_stages} stages")
    if num_virtual > 1 and num_micro % num_stages:
        raise InputError("num_micro", num_micro, f"interleaving requires a multiple of the {num_stages} stages")
    kind = schedule or (INTERLEAVED if num_virtual > 1 else ONE_F_ONE_B)
    pipeline = Pipeline(num_stages, tuple(map(str, range(1, len(chunks)))), kind, weights_lag)
    times = chunk_times(chunks, num_stages, send_s)
    if kind.is_message_driven:
        ends = [passes[-1].end_s for passes in _message_driven_timelines(times, num_micro)]
    else:
        ends = _run(pipeline, times, num_micro, beside=schedule is not None and schedule.overlaps_sends).ready
    busy = [num_micro * sum(chunk.busy_s for chunk in chunks[stage::num_stages]) for stage in range(num_stages)]
    stage = max(range(num_stages), key=busy.__getitem__)
    own = times[stage::num_stages]
    sent = 0.0 if kind.is_message_driven else num_micro * sum(time.sent_s for time in own)
    return PipelineTime(max(ends), busy[stage], sent, stage, tuple(ends))


def pass_spans(chunks: Sequence[ChunkTimes], pipeline: Pipeline, num_micro: int) -> list[PassSpan]:
    """Spans of all passes of a step, by stage and in its order; every chunk must have its own message times."""
    times = chunk_times(chunks, pipeline.num_stages, 0.0)
    if pipeline.schedule.is_message_driven:
        stages = enumerate(_message_driven_timelines(times, num_micro))
        return [PassSpan(stage, one.what, one.start_s, one.end_s) for stage, passes in stages for one in passes]
    begun = _run(pipeline, times, num_micro, beside=pipeline.schedule.overlaps_sends).starts
    found = []
    for stage in range(pipeline.num_stages):
        numbers = stage_order(pipeline, stage, num_micro).pass_numbers(len(chunks), num_micro).tolist()
        for at, one in zip(numbers, stage_passes(pipeline, stage, num_micro), strict=True):
            began = float(begun[at])
            found.append(PassSpan(stage, one, began, began + times[one.chunk].own_s[one.kind]))
    return found


def _message_driven_timelines(times: Sequence[SendTimes], num_micro: int) -> list[list[StageTimeline]]:
    seconds = [
        StageSeconds(time.own_s[FORWARD], time.own_s[BACKWARD], time.sends_s[FORWARD], time.sends_s[BACKWARD])
        for time in times
    ]
    return message_driven(seconds, num_micro)


def chunk_times(chunks: Sequence[ChunkTimes], num_stages: int, send_s: float) -> list[SendTimes]:
    """Times per chunk; ``send_s`` applies to messages without a time of their own."""
    return [SendTimes(chunk, at, len(chunks), send_s if num_stages > 1 else None) for at, chunk in enumerate(chunks)]


def _run(pipeline: Pipeline, times: Sequence[SendTimes], num_micro: int, *, beside: bool) -> PassTimeline:
    own_s = [time.own_s[kind] for kind in KINDS for time in times]
    sends_s = [time.sends_s[kind] for kind in KINDS for time in times]
    return simulate_orders(pass_orders(pipeline, num_micro), own_s, sends_s, num_micro, beside=beside)


def simulate_orders(
    orders: PassOrders, own_s: Sequence[float], sends_s: Sequence[float], num_micro: int, *, beside: bool
) -> PassTimeline:
    """Start passes after the previous one on their stage and after their input arrived.

    Each sweep advances every stage as far as its inputs allow.

    Args:
        own_s, sends_s: seconds of each (kind of pass, chunk), and of the message that it sends.
        beside: a message overlaps the next pass if that has the same direction; otherwise the sender blocks.
    """
    if LOOPS is not None:
        return _run_compiled(orders, np.array(own_s), np.array(sends_s), num_micro, beside=beside)
    num_stages = len(orders.firsts) - 1
    nobody = len(own_s) * num_micro
    ends = [-1.0] * nobody + [0.0]  # arrival of what a pass sends; -1 if unknown
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
    return PassTimeline(ready, starts)


def _run_compiled(orders: PassOrders, own_s: Floats, sends_s: Floats, num_micro: int, *, beside: bool) -> PassTimeline:
    assert LOOPS is not None
    starts, ready = np.zeros(len(own_s) * num_micro), np.zeros(len(orders.firsts) - 1)
    LOOPS.run_passes(
        orders.firsts, orders.passes, orders.sources, orders.follows, own_s, sends_s, num_micro, beside, starts, ready
    )  # fmt: skip
    return PassTimeline(ready.tolist(), starts)


@dataclass(frozen=True, eq=False)
class PassOrders:
    """The passes of all stages, concatenated.

    A stage's passes begin at its entry of ``firsts``, which has one more for the end. ``passes`` are numbers of (kind,
    chunk, microbatch). ``sources`` is the pass that each waits for, or one above the highest number for none.
    ``follows`` is 1 if the previous pass on the stage has the same direction, else 0.
    """

    firsts: Ints
    passes: Ints
    sources: Ints
    follows: Ints

    @cached_property
    def lists(self) -> list[tuple[list[int], list[int], list[int]]]:
        """(passes, sources, follows) of each stage; ``follows`` has one more entry for the end."""
        spans = [slice(first, end) for first, end in pairwise(self.firsts.tolist())]
        columns = self.passes, self.sources, self.follows
        parts = [[column[span].tolist() for column in columns] for span in spans]
        return [(passes, sources, [*follows, 0]) for passes, sources, follows in parts]


def pass_orders(pipeline: Pipeline, num_micro: int) -> PassOrders:
    """Orders of all stages; cached without the cuts, which do not affect them."""
    return _orders(
        pipeline.num_stages, pipeline.num_virtual, pipeline.schedule, pipeline.weights_lag, num_micro
    )  # fmt: skip


@lru_cache(maxsize=32)
def _orders(
    num_stages: int, num_virtual: int, schedule: Schedule, weights_lag: int | None, num_micro: int
) -> PassOrders:
    chunks = num_stages * num_virtual
    pipeline = Pipeline(num_stages, tuple(map(str, range(1, chunks))), schedule, weights_lag)
    orders = [stage_order(pipeline, stage, num_micro) for stage in range(num_stages)]
    firsts = np.cumsum([0, *(len(order.kinds) for order in orders)])
    passes = np.concatenate([order.pass_numbers(chunks, num_micro) for order in orders])
    sources = np.concatenate([_sources(order, chunks, num_micro) for order in orders])
    kinds = np.concatenate([order.kinds for order in orders])
    follows = np.zeros(len(kinds), dtype=np.int64)
    follows[1:] = kinds[1:] == kinds[:-1]
    follows[firsts[:-1]] = 0
    return PassOrders(firsts, passes, sources, follows)


class SendTimes:
    """Seconds of a chunk's passes with their sends; ``send_s`` is None if nothing is sent."""

    def __init__(self, chunk: ChunkTimes, at: int, num_chunks: int, send_s: float | None) -> None:
        def sends(own_s: float | None, there: bool) -> float:
            if not there or send_s is None:
                return 0.0
            return send_s if own_s is None else own_s

        ahead, back = sends(chunk.send_s, at + 1 < num_chunks), sends(chunk.gradient_send_s, at > 0)
        self.sent_s = ahead + back
        self.own_s = {FORWARD: chunk.forward_s, BACKWARD: chunk.backward_s, WGRAD: chunk.wgrad_s}
        self.sends_s = {FORWARD: ahead, BACKWARD: back, WGRAD: 0.0}


def _sources(order: Order, num_chunks: int, num_micro: int) -> Ints:
    """Number of the pass that must end before each pass.

    Forward waits for the previous chunk's forward; backward for the next chunk's backward, or the last forward; weight
    gradients for the same chunk's backward. One above the highest number stands for none.
    """
    forward, backward, weights = (order.kinds == at for at in range(len(KINDS)))
    behind = backward & (order.chunks + 1 < num_chunks)
    # The same kind of a neighbouring chunk, or the preceding kind of the same chunk.
    own = order.pass_numbers(num_chunks, num_micro)
    found = np.where(behind, own + num_micro, own - np.where(forward, 1, num_chunks) * num_micro)
    return np.where(forward & (order.chunks == 0), len(KINDS) * num_chunks * num_micro, found)
