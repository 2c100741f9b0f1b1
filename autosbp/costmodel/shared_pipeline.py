"""When the passes of a pipeline run whose stages share compute hardware (``costmodel.sharing``) and links.

The orders, and which passes wait for the messages before them, are those of ``costmodel.pipeline``. A pass is a row of
parts, which compute or wait for collectives. What computes goes faster while others wait, and slower while messages or
collectives, of whatever stage, are under way on its hardware. These take what they always take, and what goes over one link
at once shares it (``costmodel.links``).

Ranks that share hardware are CPU ranks, whose waits block. Under ``gpipe`` and ``1f1b`` a stage asks for the input of a
pass when it has run the one before, and a message begins when it was asked for (Gloo's do); under the others each waits
for the messages of both after every pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autosbp.costmodel.links import Links, shares
from autosbp.costmodel.pipeline import Chunk, Span, chunk_times, orders_of
from autosbp.costmodel.pipeline_passes import FORWARD, KINDS, stage_order, stage_passes
from autosbp.costmodel.sharing import Paces
from autosbp.costmodel.simulate import Part
from autosbp.pipeline import Pipeline

Parts = tuple[Part, ...]
"""With all ranks computing, one behind the other."""
COLLECTIVE_ENDS = 2
"""Of messages that a rank has at work in a collective: one that it sends, one that it receives."""
_DONE = 1e-12
"""Of a part or message: what is left of it by rounding."""


@dataclass(frozen=True, slots=True)
class Shared:
    """``spans`` of all passes, by stage and in its order; ``ends`` is when each stage is done with them and their sends."""

    spans: list[Span]
    ends: tuple[float, ...]


@dataclass(slots=True)
class _Stage:
    """``place`` counts passes begun, ``parts`` are those left of the pass that runs, the one under way last; it needs
    ``left_s`` more. ``messages`` are the passes whose messages it sends, the one under way first, which needs ``send_s``
    more. ``free_s`` is when its last pass, and what it waited for, was over; while what pass ``held`` sends is not there,
    it waits."""

    place: int = 0
    free_s: float = 0.0
    running: int = -1
    held: int = -1
    parts: list[Part] = field(default_factory=list)
    left_s: float = 0.0
    messages: deque[int] = field(default_factory=deque)
    send_s: float = 0.0


def shared_passes(
    chunks: Sequence[Chunk],
    parts: Sequence[Mapping[str, Parts]],
    pipeline: Pipeline,
    num_micro: int,
    paces: Paces,
    links: Links | None = None,
) -> Shared:
    """Simulate one step.

    Args:
        chunks: the model's in order, with times of their own for all messages; their passes' times are not read.
        parts: of each chunk's passes, by kind; none of a kind that takes no time.
        pipeline: of a schedule with a fixed order.
        links: of the stages; None where each message and collective has links of its own.
    """
    run = _Run(chunks, parts, pipeline, num_micro, paces, links)
    while run.advance():
        pass
    spans = []
    for stage in range(pipeline.num_stages):
        numbers = stage_order(pipeline, stage, num_micro).numbers(len(chunks), num_micro).tolist()
        for at, one in zip(numbers, stage_passes(pipeline, stage, num_micro), strict=True):
            spans.append(Span(stage, one, run.starts[at], run.overs[at]))
    return Shared(spans, tuple(stage.free_s for stage in run.stages))


class _Run:
    def __init__(
        self,
        chunks: Sequence[Chunk],
        parts: Sequence[Mapping[str, Parts]],
        pipeline: Pipeline,
        num_micro: int,
        paces: Paces,
        links: Links | None,
    ) -> None:
        times = chunk_times(chunks, pipeline.num_stages, 0.0)
        self.num_chunks, self.num_micro, self.paces, self.links = len(chunks), num_micro, paces, links
        self.beside = pipeline.schedule.overlaps_sends
        self.orders = orders_of(pipeline, num_micro).lists
        self.parts = [one.get(kind, ())[::-1] for kind in KINDS for one in parts]
        self.sends_s = [time.sends_s[kind] for kind in KINDS for time in times]
        nobody = len(self.parts) * num_micro
        self.arrived = [False] * nobody + [True]  # what a pass sends is there
        self.starts, self.overs = [0.0] * nobody, [-1.0] * (nobody + 1)
        self.stages = [_Stage() for _ in range(pipeline.num_stages)]
        self.now_s = 0.0
        last = len(chunks) - 1
        self.crosses = [at < last if kind == FORWARD else at > 0 for kind in KINDS[:2] for at in range(len(chunks))]
        self.crosses += [False] * len(chunks)
        self.asked = [not self.beside] * (nobody + 1)  # for what each pass sends
        for _, sources, _ in self.orders:
            self.asked[sources[0]] = True

    def advance(self) -> bool:
        """Begin what can, and let time pass until something ends; whether there was anything."""
        self._begin()
        busy = [at for at, stage in enumerate(self.stages) if stage.running >= 0]
        computing = [at for at in busy if self.stages[at].parts[-1].computes]
        waiting = [at for at in busy if not self.stages[at].parts[-1].computes]
        sending = [at for at, stage in enumerate(self.stages) if stage.messages]
        if not busy and not sending:
            return False
        targets = [self._target(self.stages[at].messages[0]) for at in sending]
        speeds = dict(zip(computing, self.paces.of(computing, self._ends(waiting, sending, targets)), strict=True))
        rates = self._rates(waiting, sending, targets)
        speeds.update(zip(waiting, rates, strict=False))
        sent = dict(zip(sending, rates[len(waiting) :], strict=True))
        over_s = {at: self.stages[at].left_s / speeds[at] for at in busy}
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
            stage.left_s -= speeds[at] * passed_s
            if over_s[at] <= passed_s or stage.left_s <= _DONE * stage.parts[-1].seconds:
                stage.parts.pop()
                self._go_on(at)
        return True

    def _ends(self, waiting: Sequence[int], sending: Sequence[int], targets: Sequence[int]) -> list[int]:
        """Of messages that each rank of every stage has at work: waits are for collectives."""
        found = [0] * len(self.stages)
        for at in waiting:
            found[at] += COLLECTIVE_ENDS
        for at in (*sending, *targets):
            found[at] += 1
        return found

    def _rates(self, waiting: Sequence[int], sending: Sequence[int], targets: Sequence[int]) -> list[float]:
        """Of the collectives of these stages, and of these messages, relative to what they are alone."""
        if self.links is None:
            return [1.0] * (len(waiting) + len(sending))
        streams = [self.links.collectives(at, self.stages[at].parts[-1].level) for at in waiting]
        return shares(streams + [self.links.message(*ends) for ends in zip(sending, targets, strict=True)])

    def _target(self, one: int) -> int:
        """The stage that the message of a pass goes to."""
        kind, chunk = divmod(one // self.num_micro, self.num_chunks)
        return (chunk + (1 if KINDS[kind] == FORWARD else -1)) % len(self.stages)

    def _begin(self) -> None:
        """Begin every pass whose stage is free and whose input is there."""
        moved = True
        while moved:  # a pass that takes no time may let another one begin
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
                self._go_on(at)
                moved = True

    def _go_on(self, at: int) -> None:
        """With the next part of the pass that runs, or end the pass: what it sends follows what it sent before."""
        stage = self.stages[at]
        while stage.parts and stage.parts[-1].seconds <= 0.0:
            stage.parts.pop()
        if stage.parts:
            stage.left_s = stage.parts[-1].seconds
            return
        one, stage.running = stage.running, -1
        passes, sources, follows = self.orders[at]
        self.overs[one] = stage.free_s = self.now_s
        stage.held = -1 if self.beside and follows[stage.place] else one
        self._send(at, one)
        if self.beside and stage.place < len(passes):
            self._ask(sources[stage.place])

    def _ask(self, one: int) -> None:
        if not self.asked[one]:
            self.asked[one] = True
            if self.overs[one] >= 0.0:
                self._send(one // self.num_micro % self.num_chunks % len(self.stages), one)

    def _send(self, at: int, one: int) -> None:
        """Begin the message of a pass that is over, behind what its stage sent before, if it was asked for."""
        stage, row = self.stages[at], one // self.num_micro
        if self.crosses[row] and not self.asked[one]:
            return
        stage.messages.append(one)
        if len(stage.messages) == 1:
            self._next_message(at)

    def _end_message(self, at: int) -> None:
        """What it took to is there; the next one begins."""
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
