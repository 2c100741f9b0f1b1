"""When the passes of a pipeline run whose stages share compute hardware (``costmodel.sharing``).

The orders, and which passes wait for the messages before them, are those of ``costmodel.pipeline``. A pass is a row of
parts, which compute or wait for collectives; what computes goes faster while others wait. Collectives take what they
always take.

Ranks that share hardware are CPU ranks, whose waits block. Under ``gpipe`` and ``1f1b`` a stage asks for the input of a
pass when it has run the one before, and a message begins when it was asked for (Gloo's do); under the others each waits
for the messages of both after every pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autosbp.costmodel.pipeline import BESIDE, Chunk, Span, chunk_times, pass_orders
from autosbp.costmodel.pipeline_passes import FORWARD, KINDS, stage_order, stage_passes
from autosbp.costmodel.sharing import Paces
from autosbp.pipeline import Pipeline

Parts = tuple[tuple[float, bool], ...]
"""(seconds with all ranks computing, whether it computes), one behind the other."""
_DONE = 1e-12
"""Of a part: what is left of it by rounding."""


@dataclass(frozen=True, slots=True)
class Shared:
    """``spans`` of all passes, by stage and in its order; ``ends`` is when each stage is done with them and their sends."""

    spans: list[Span]
    ends: tuple[float, ...]


@dataclass(slots=True)
class _Stage:
    """``place`` counts passes begun, ``parts`` are those left of the pass that runs, the one under way last; it needs
    ``left_s`` more. ``free_s`` and ``behind_s``: when it may run the next, and when its last message is there; while the
    message of pass ``held`` was not asked for, it may not."""

    place: int = 0
    free_s: float = 0.0
    behind_s: float = 0.0
    running: int = -1
    held: int = -1
    parts: list[tuple[float, bool]] = field(default_factory=list)
    left_s: float = 0.0


def shared_passes(
    chunks: Sequence[Chunk], parts: Sequence[Mapping[str, Parts]], pipeline: Pipeline, num_micro: int, paces: Paces
) -> Shared:
    """Simulate one step.

    Args:
        chunks: the model's in order, with times of their own for all messages; their passes' times are not read.
        parts: of each chunk's passes, by kind; none of a kind that takes no time.
        pipeline: of a schedule with a fixed order.
    """
    run = _Run(chunks, parts, pipeline, num_micro, paces)
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
    ) -> None:
        times = chunk_times(chunks, pipeline.num_stages, 0.0)
        self.num_chunks, self.num_micro, self.paces = len(chunks), num_micro, paces
        self.beside = pipeline.schedule in BESIDE
        self.orders = pass_orders(pipeline.num_stages, pipeline.num_virtual, pipeline.schedule, num_micro)
        self.parts = [one.get(kind, ())[::-1] for kind in KINDS for one in parts]
        self.sends_s = [time.sends_s[kind] for kind in KINDS for time in times]
        nobody = len(self.parts) * num_micro
        self.arrivals = [-1.0] * nobody + [0.0]  # when what a pass sends is there
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
        """Begin what can, and let time pass until something ends or may begin; whether there was anything."""
        waits_s = self._begin()
        busy = [at for at, stage in enumerate(self.stages) if stage.running >= 0]
        computing = [at for at in busy if self.stages[at].parts[-1][1]]
        speeds = dict(zip(computing, self.paces.of(computing), strict=True))
        over_s = {at: self.stages[at].left_s / speeds.get(at, 1.0) for at in busy}
        if not over_s and not waits_s:
            return False
        passed_s = min([*over_s.values(), *(when - self.now_s for when in waits_s)])
        self.now_s = min([self.now_s + passed_s, *waits_s])
        for at in busy:
            stage = self.stages[at]
            stage.left_s -= speeds.get(at, 1.0) * passed_s
            if over_s[at] <= passed_s or stage.left_s <= _DONE * stage.parts[-1][0]:
                stage.parts.pop()
                self._go_on(at)
        return True

    def _begin(self) -> list[float]:
        """Begin every pass whose stage is free and whose input is there; when others may, as far as that is known."""
        waits_s: list[float] = []
        moved = True
        while moved:  # a pass that takes no time may let another one begin
            moved, waits_s = False, []
            for at, stage in enumerate(self.stages):
                passes, sources, _ = self.orders[at]
                if stage.running >= 0 or stage.held >= 0 or stage.place == len(passes):
                    continue
                arrived_s = self.arrivals[sources[stage.place]]
                if arrived_s < 0.0:
                    continue
                begin_s = max(stage.free_s, arrived_s)
                if begin_s > self.now_s:
                    waits_s.append(begin_s)
                    continue
                stage.running = passes[stage.place]
                stage.place += 1
                stage.parts = list(self.parts[stage.running // self.num_micro])
                self.starts[stage.running] = self.now_s
                self._go_on(at)
                moved = True
        return waits_s

    def _go_on(self, at: int) -> None:
        """With the next part of the pass that runs, or end the pass: what it sends follows what it sent before."""
        stage = self.stages[at]
        while stage.parts and stage.parts[-1][0] <= 0.0:
            stage.parts.pop()
        if stage.parts:
            stage.left_s = stage.parts[-1][0]
            return
        one, stage.running = stage.running, -1
        passes, sources, follows = self.orders[at]
        self.overs[one] = stage.free_s = self.now_s
        stage.held = -1 if self.beside and follows[stage.place] else one
        self._send(at, one)
        if self.beside and stage.place < len(passes):
            self._ask(sources[stage.place])

    def _ask(self, one: int) -> None:
        self.asked[one] = True
        if self.overs[one] >= 0.0 > self.arrivals[one]:
            self._send(one // self.num_micro % self.num_chunks % len(self.stages), one)

    def _send(self, at: int, one: int) -> None:
        """Begin the message of a pass that is over, behind what its stage sent before, if it was asked for."""
        stage, row = self.stages[at], one // self.num_micro
        if self.crosses[row] and not self.asked[one]:
            return
        self.arrivals[one] = stage.behind_s = max(self.now_s, stage.behind_s) + self.sends_s[row]
        if stage.held == one:
            stage.free_s, stage.behind_s, stage.held = stage.behind_s, 0.0, -1
