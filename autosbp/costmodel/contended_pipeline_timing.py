"""Timeline of a pipeline whose stages share compute hardware (``costmodel.compute_contention``) and links.

Orders and dependencies are those of ``costmodel.pipeline_timing``. A pass is a sequence of parts that compute or wait
for collectives. Computing parts run faster while others wait, and slower while messages or collectives, of any stage,
are in flight on their hardware. Messages and collectives keep their duration, except that concurrent ones share links
(``costmodel.link_contention``).

Ranks that share hardware are CPU ranks, whose waits block. Under ``gpipe`` and ``1f1b`` a stage posts the receive for a
pass after the previous pass, and a message starts once its receive is posted (as in Gloo); under other schedules both
ranks wait for their messages after every pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autosbp.costmodel.compute_contention import StageSpeeds
from autosbp.costmodel.link_contention import StageLinks, bandwidth_shares
from autosbp.costmodel.pipeline_timing import ChunkTimes, PassSpan, chunk_times, pass_orders
from autosbp.costmodel.step_simulator import ProgramPart
from autosbp.plan.pipeline import Pipeline
from autosbp.schedules.passes import FORWARD, KINDS, stage_order, stage_passes

Parts = tuple[ProgramPart, ...]
"""Consecutive parts of a pass, timed with all ranks computing."""
COLLECTIVE_ENDS = 2
"""Messages that a rank has in flight during a collective: one sent, one received."""
_DONE = 1e-12
"""Relative remainder of a part or message that counts as rounding."""


@dataclass(frozen=True, slots=True)
class SharedTimeline:
    """``spans`` of all passes, by stage and in its order; ``ends`` is when each stage has finished them and their sends."""

    spans: list[PassSpan]
    ends: tuple[float, ...]


@dataclass(slots=True)
class _Stage:
    """State of a stage.

    Args:
        place: number of passes started.
        free_s: end of its last pass and of the sends that this pass blocked on.
        running: number of the running pass; -1 for none.
        held: pass whose message the stage blocks on; -1 for none.
        parts: remaining parts of the running pass, the current one last.
        left_s: remaining seconds of the current part.
        messages: passes whose messages it sends, the current one first.
        send_s: remaining seconds of the current message.
    """

    place: int = 0
    free_s: float = 0.0
    running: int = -1
    held: int = -1
    parts: list[ProgramPart] = field(default_factory=list)
    remaining_s: float = 0.0
    messages: deque[int] = field(default_factory=deque)
    send_s: float = 0.0


def simulate_shared_pipeline(
    chunks: Sequence[ChunkTimes],
    parts: Sequence[Mapping[str, Parts]],
    pipeline: Pipeline,
    num_micro: int,
    paces: StageSpeeds,
    links: StageLinks | None = None,
) -> SharedTimeline:
    """Simulate one step.

    Args:
        chunks: the model's chunks in order, each with its own message times; pass times are not read.
        parts: parts of each chunk's passes, by kind; empty for a kind that takes no time.
        pipeline: its schedule must have a fixed order.
        links: links of the stages; None if each message and collective has links of its own.
    """
    run = _Run(chunks, parts, pipeline, num_micro, paces, links)
    while run.advance():
        pass
    spans = []
    for stage in range(pipeline.num_stages):
        numbers = stage_order(pipeline, stage, num_micro).pass_numbers(len(chunks), num_micro).tolist()
        for at, one in zip(numbers, stage_passes(pipeline, stage, num_micro), strict=True):
            spans.append(PassSpan(stage, one, run.starts[at], run.pass_ends[at]))
    return SharedTimeline(spans, tuple(stage.free_s for stage in run.stages))


class _Run:
    def __init__(
        self,
        chunks: Sequence[ChunkTimes],
        parts: Sequence[Mapping[str, Parts]],
        pipeline: Pipeline,
        num_micro: int,
        paces: StageSpeeds,
        links: StageLinks | None,
    ) -> None:
        times = chunk_times(chunks, pipeline.num_stages, 0.0)
        self.num_chunks, self.num_micro, self.paces, self.links = len(chunks), num_micro, paces, links
        self.beside = pipeline.schedule.overlaps_sends
        self.orders = pass_orders(pipeline, num_micro).lists
        self.parts = [one.get(kind, ())[::-1] for kind in KINDS for one in parts]
        self.sends_s = [time.sends_s[kind] for kind in KINDS for time in times]
        nobody = len(self.parts) * num_micro
        self.arrived = [False] * nobody + [True]  # whether the message of a pass has arrived
        self.starts, self.pass_ends = [0.0] * nobody, [-1.0] * (nobody + 1)
        self.stages = [_Stage() for _ in range(pipeline.num_stages)]
        self.now_s = 0.0
        last = len(chunks) - 1
        self.sends_message = [
            at < last if kind == FORWARD else at > 0 for kind in KINDS[:2] for at in range(len(chunks))
        ]
        self.sends_message += [False] * len(chunks)
        self.asked = [not self.beside] * (nobody + 1)  # whether the receive of a pass's message is posted
        for _, sources, _ in self.orders:
            self.asked[sources[0]] = True

    def advance(self) -> bool:
        """Start what can start and advance to the next end; returns False if nothing is running."""
        self._begin()
        busy = [at for at, stage in enumerate(self.stages) if stage.running >= 0]
        computing = [at for at in busy if self.stages[at].parts[-1].computes]
        waiting = [at for at in busy if not self.stages[at].parts[-1].computes]
        sending = [at for at, stage in enumerate(self.stages) if stage.messages]
        if not busy and not sending:
            return False
        targets = [self._target(self.stages[at].messages[0]) for at in sending]
        speeds = dict(
            zip(computing, self.paces.of(computing, self._message_ends(waiting, sending, targets)), strict=True)
        )
        rates = self._rates(waiting, sending, targets)
        speeds.update(zip(waiting, rates, strict=False))
        sent = dict(zip(sending, rates[len(waiting) :], strict=True))
        over_s = {at: self.stages[at].remaining_s / speeds[at] for at in busy}
        there_s = {at: self.stages[at].send_s / sent[at] for at in sending}
        passed_s = min([*over_s.values(), *there_s.values()])
        self.now_s += passed_s
        for at in sending:
            stage = self.stages[at]
            stage.send_s -= sent[at] * passed_s
            if there_s[at] <= passed_s or stage.send_s <= _DONE * self.sends_s[stage.messages[0] // self.num_micro]:
                self._end_message(at)
        for at in busy:
            stage = self.stages[at]
            stage.remaining_s -= speeds[at] * passed_s
            if over_s[at] <= passed_s or stage.remaining_s <= _DONE * stage.parts[-1].seconds:
                stage.parts.pop()
                self._start_next_part(at)
        return True

    def _message_ends(self, waiting: Sequence[int], sending: Sequence[int], targets: Sequence[int]) -> list[int]:
        """Messages in flight at each rank of every stage; waiting parts are collectives."""
        found = [0] * len(self.stages)
        for at in waiting:
            found[at] += COLLECTIVE_ENDS
        for at in (*sending, *targets):
            found[at] += 1
        return found

    def _rates(self, waiting: Sequence[int], sending: Sequence[int], targets: Sequence[int]) -> list[float]:
        """Rates of these stages' collectives and of these messages, relative to running alone."""
        if self.links is None:
            return [1.0] * (len(waiting) + len(sending))
        streams = [self.links.collectives(at, self.stages[at].parts[-1].level) for at in waiting]
        return bandwidth_shares(streams + [self.links.message(*ends) for ends in zip(sending, targets, strict=True)])

    def _target(self, one: int) -> int:
        """The stage that receives the message of a pass."""
        kind, chunk = divmod(one // self.num_micro, self.num_chunks)
        return (chunk + (1 if KINDS[kind] == FORWARD else -1)) % len(self.stages)

    def _begin(self) -> None:
        """Start every pass whose stage is free and whose input has arrived."""
        moved = True
        while moved:  # a pass that takes no time may unblock another one
            moved = False
            for at, stage in enumerate(self.stages):
                passes, sources, _ = self.orders[at]
                if stage.running >= 0 or stage.held >= 0 or stage.place == len(passes):
                    continue
                if not self.arrived[sources[stage.place]]:
                    continue
                stage.running = passes[stage.place]
                stage.place += 1
                stage.parts = list(self.parts[stage.running // self.num_micro])
                self.starts[stage.running] = self.now_s
                self._start_next_part(at)
                moved = True

    def _start_next_part(self, at: int) -> None:
        """Start the next part of the running pass, or end the pass and queue its message."""
        stage = self.stages[at]
        while stage.parts and stage.parts[-1].seconds <= 0.0:
            stage.parts.pop()
        if stage.parts:
            stage.remaining_s = stage.parts[-1].seconds
            return
        one, stage.running = stage.running, -1
        passes, sources, follows = self.orders[at]
        self.pass_ends[one] = stage.free_s = self.now_s
        stage.held = -1 if self.beside and follows[stage.place] else one
        self._send(at, one)
        if self.beside and stage.place < len(passes):
            self._post_receive(sources[stage.place])

    def _post_receive(self, one: int) -> None:
        if not self.asked[one]:
            self.asked[one] = True
            if self.pass_ends[one] >= 0.0:
                self._send(one // self.num_micro % self.num_chunks % len(self.stages), one)

    def _send(self, at: int, one: int) -> None:
        """Queue the message of a finished pass after earlier ones of its stage, if its receive is posted."""
        stage, row = self.stages[at], one // self.num_micro
        if self.sends_message[row] and not self.asked[one]:
            return
        stage.messages.append(one)
        if len(stage.messages) == 1:
            self._next_message(at)

    def _end_message(self, at: int) -> None:
        """Mark the current message as arrived and start the next one."""
        stage = self.stages[at]
        one = stage.messages.popleft()
        self.arrived[one] = True
        if stage.held == one:
            stage.free_s, stage.held = self.now_s, -1
        if stage.messages:
            self._next_message(at)

    def _next_message(self, at: int) -> None:
        stage = self.stages[at]
        stage.send_s = self.sends_s[stage.messages[0] // self.num_micro]
        if stage.send_s <= 0.0:
            self._end_message(at)
