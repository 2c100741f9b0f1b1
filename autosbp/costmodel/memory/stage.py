"""The memory of one rank of a pipeline's stage.

Each chunk is run without data as ``memory.rank`` runs a whole program, one microbatch after another; a second forward pass
before the first backward tells what a microbatch keeps between its passes. The order of the stage's passes tells how many
are in flight at each moment. What a chunk receives, and what it sends, it keeps until the backward of the microbatch; a
gradient that it receives, only during that. Weight gradients that are made later (zero bubble) are a pass of their own. What
is sent stays until the runtime waits for it (``kept_sends``). A message-driven stage has registers for messages besides.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from autosbp.costmodel.alike import KnownChunks, chunk_key
from autosbp.costmodel.memory.autograd import Leaf, Machine, Node, Notice
from autosbp.costmodel.memory.later import LaterWeights, Sink
from autosbp.costmodel.memory.libraries import held
from autosbp.costmodel.memory.rank import StepRun
from autosbp.costmodel.memory.repeats import Mark, UnlikeError
from autosbp.costmodel.memory.state import optimizer_bytes
from autosbp.costmodel.memory.tensors import Meter, Tensor
from autosbp.costmodel.message_driven import GRADIENT_REGISTERS
from autosbp.costmodel.pipeline_passes import BACKWARD, FORWARD, KINDS, WEIGHTS, Ints, Order, stage_order
from autosbp.costmodel.stages import Chunk, Stages
from autosbp.graph.ir import DTYPE_BYTES, Ref
from autosbp.plan import Strategy
from autosbp.sbp.deferral import deferring
from autosbp.sbp.placement import local_shape
from autosbp.sbp.program import Op, made_layout
from autosbp.sbp.recompute import ReadKey

Peaks = Mapping[tuple[str, str], Counter[str]]
PURPOSES = ("parameters", "gradients", "optimizer", "activations", "gathered", "temporaries", "data")
RESIDENT = ("parameters", "gradients", "data")
"""What is there between passes, too, whatever is in flight; so are copies of parameters that are gathered once a step."""
FRESH, LATER, LAST = "fresh", "later", "last"
"""Passes before a chunk has any gradients, those that find some, and the last backward, which gives them away."""


def stage_memory(
    stages: Stages, stage: int, *, device: str = "cpu", known: KnownChunks | None = None
) -> dict[str, int]:
    """Bytes by purpose, at the moment of a step when they are most together. ``known`` keeps what chunks need, for those
    of other stages and strategies that are alike."""
    strategy = stages.strategy
    known = KnownChunks() if known is None else known
    needs = {chunk.index: _needs(stages, chunk, device, known) for chunk in stages.of(stage)}
    order = stage_order(stages.pipeline, stage, strategy.num_micro)
    total = _fullest(order, needs, strategy.num_micro - 1, _registers(stages, stage))
    total["optimizer"] = optimizer_bytes(stages.trained_of(stage), strategy)
    return {name: total[name] for name in PURPOSES if total[name] or name != "gathered"} | held(device)


@dataclass(frozen=True, slots=True)
class Needs:
    """Of a chunk alone. Bytes by purpose when they are most with one microbatch in flight, by pass; what is there between
    passes; what each microbatch keeps between its passes, between its backward and its weight gradients, and after both."""

    peaks: Peaks
    resident: Counter[str]
    kept: int
    deferred: int
    sent: int

    def there(self, when: str) -> Counter[str]:
        return self.resident - Counter(gradients=self.resident["gradients"]) if when == FRESH else self.resident


def _needs(stages: Stages, chunk: Chunk, device: str, known: KnownChunks) -> Needs:
    strategy, schedule = stages.strategy, stages.pipeline.schedule

    def needs() -> Needs:
        peaks, kept, deferred = known.of(
            _run_key(stages, chunk, device), partial(_run, chunk, strategy, device, stages.may_defer)
        )
        names = (*RESIDENT, *(["gathered"] if strategy.gather == "step" else []))
        resident = Counter({name: peaks[FORWARD, LATER][name] for name in names})
        values, gradients = schedule.kept_sends
        ahead = sum(size for _, size, _ in stages.boundary(chunk.index))
        back = sum(size for _, size, gradient in (stages.boundary(chunk.index - 1) if chunk.index else ()) if gradient)
        return Needs(peaks, resident, kept, deferred, values * ahead + gradients * back)

    return known.of(("needs", schedule, *_run_key(stages, chunk, device)), needs)


def memory_runs(stages: Stages, chunks: Iterable[Chunk], device: str) -> dict[Hashable, Callable[[], object]]:
    """What takes long of chunks' memory, for ``KnownChunks.prepare``."""
    return {
        _run_key(stages, chunk, device): partial(_run, chunk, stages.strategy, device, stages.may_defer)
        for chunk in chunks
    }  # fmt: skip


def _run_key(stages: Stages, chunk: Chunk, device: str) -> tuple[Hashable, ...]:
    return "memory", device, stages.may_defer, stages.key, chunk_key(stages, chunk)


def _run(chunk: Chunk, strategy: Strategy, device: str, defers: bool) -> tuple[Peaks, int, int]:
    """Peaks by pass, what one more microbatch keeps, and what it keeps between its backward and its weight gradients."""
    run = ChunkRun(chunk, strategy, Machine(Meter(), device=device), defers=defers)
    if run.may_leave_out:
        run.leave_out()
    try:
        peaks = run.peaks()
    except UnlikeError:
        run = ChunkRun(chunk, strategy, Machine(Meter(), device=device), defers=defers)
        peaks = run.peaks()
    if run.flow.gathers and strategy.num_micro == 1:
        run.kept = ChunkRun(chunk, strategy, Machine(Meter(), device=device)).kept_by_another()
    return peaks, run.kept, run.waiting


def _fullest(order: Order, needs: Mapping[int, Needs], last: int, beside: Counter[str]) -> Counter[str]:
    """By purpose, during the pass in which all is most. ``last`` is the last microbatch, ``beside`` what is there besides,
    by the kind of the pass."""
    each = [needs[chunk] for chunk in sorted(needs)]
    known = _moments(order, last)
    waiting = {when: [need.there(when).total() for need in each] for when in (FRESH, LATER)}
    there = [sum(waiting[FRESH])]  # by how many chunks have gradients
    for chunk in known.firsts:
        there.append(there[-1] + waiting[LATER][chunk] - waiting[FRESH][chunk])
    # Of each kind what it changes for the passes behind it, what is there besides microbatches in flight, and its own peak.
    changes, besides, peaks = [], [], []
    for kind, moment, own, have in known.kinds:
        need = each[own]
        runs = {FORWARD: 0, BACKWARD: need.kept, WEIGHTS: need.deferred}[kind]  # in flight, and in the pass's own peak
        keeps = {FORWARD: need.kept, BACKWARD: need.deferred + need.sent, WEIGHTS: 0}[kind]
        changes.append(keeps - runs)
        besides.append(beside[kind] - runs)
        others = there[have] - waiting[LATER if own in known.firsts[:have] else FRESH][own]
        peaks.append(others + need.peaks.get((kind, moment), Counter()).total())
    change = np.array(changes)[known.kind]
    more = np.cumsum(change) - change + np.array(besides)[known.kind]
    total = more + np.array(peaks)[known.kind]
    fullest = int(total.argmax())
    if total[fullest] <= 0:
        return Counter()
    kind, moment, at_work, have = known.kinds[known.kind[fullest]]
    parts = Counter(each[at_work].peaks.get((kind, moment), Counter()))
    parts += Counter(activations=int(more[fullest]))
    for at, other in enumerate(each):
        parts += other.there(LATER if at in known.firsts[:have] else FRESH) if at != at_work else Counter()
    return parts


@dataclass(frozen=True, slots=True, eq=False)
class _Moments:
    """The passes of a stage, by all that tells what is there during one: of which kind each is. A kind is that of the pass and
    its moment, which of the stage's chunks it goes through, and how many chunks have gradients by then. ``firsts`` are the
    chunks in the order in which they come to have some."""

    kinds: list[tuple[str, str, int, int]]
    kind: Ints
    firsts: list[int]


@lru_cache(maxsize=256)
def _moments(order: Order, last: int) -> _Moments:
    own = np.searchsorted(np.unique(order.chunks), order.chunks)
    chunks = range(int(own.max()) + 1)
    whens = (FRESH, LATER, LAST)
    forward, backward = (order.kinds == KINDS.index(kind) for kind in (FORWARD, BACKWARD))
    # A chunk has gradients from the end of its first backward pass on.
    firsts = np.array([int(np.argmax(backward & (own == at))) for at in chunks])
    places = np.arange(len(own))
    when = np.where(~forward & (order.micros == last), whens.index(LAST), places > firsts[own])
    have = np.searchsorted(np.sort(firsts), places)
    shape = len(KINDS), len(whens), len(chunks), len(chunks) + 1
    numbers = np.ravel_multi_index((order.kinds, when, own, have), shape)
    place = np.zeros(math.prod(shape), dtype=np.int64)
    place[numbers] = 1
    found = np.flatnonzero(place)
    place[found] = np.arange(len(found))
    columns = (column.tolist() for column in np.unravel_index(found, shape))
    kinds = [(KINDS[of], whens[moment], *rest) for of, moment, *rest in zip(*columns, strict=True)]
    return _Moments(kinds, place[numbers], np.argsort(firsts, kind="stable").tolist())


def _registers(stages: Stages, stage: int) -> Counter[str]:
    """Messages in registers of a message-driven stage, by the kind of the pass that runs beside them: an input that waits
    while as many microbatches are in flight as may be, and gradients, received and to be sent. A backward pass has one of
    each kind itself."""
    pipeline, found = stages.pipeline, Counter[str]()
    if pipeline.schedule.is_message_driven:
        before, behind = (stages.boundary(at) if at >= 0 else [] for at in (stage - 1, stage))
        inputs = sum(size for _, size, _ in before) if stages.strategy.num_micro > pipeline.num_stages - stage else 0
        gradients = sum(size for _, size, gradient in (*before, *behind) if gradient)
        found[FORWARD] = inputs + GRADIENT_REGISTERS * gradients
        found[BACKWARD] = inputs + (GRADIENT_REGISTERS - 1) * gradients
    return found


_MOMENTS = ((LAST,), (FRESH, LAST), (FRESH, LATER, LAST))
"""Of as many microbatches; more are like those between."""


@dataclass(slots=True)
class _Open:
    """A microbatch between its passes: what autograd recorded of it, and what the stage holds itself."""

    root: Tensor
    nodes: list[Node | Notice]
    held: list[Tensor]


class ChunkRun(StepRun):
    """A chunk's passes. Each microbatch in flight has its own part of what autograd records. After ``peaks`` ``kept`` is what
    the last one keeps: as any other but the first, for which parameters are gathered that are gathered once a step.
    ``waiting`` is what one keeps between its backward and its weights' gradients, where the schedule ``defers`` these."""

    def __init__(self, chunk: Chunk, strategy: Strategy, machine: Machine, *, defers: bool = False) -> None:
        super().__init__(chunk.graph, strategy, chunk.flow, machine)
        self.kept = self.waiting = 0
        self.later = LaterWeights(machine) if defers else None
        self._deferring = deferring(chunk.graph, strategy, chunk.flow) if defers else frozenset()

    @property
    def may_leave_out(self) -> bool:
        return not self.flow.buckets and self.gathers_anew

    def leave_out(self, deferring: frozenset[str] = frozenset()) -> None:
        super().leave_out(deferring or self._deferring)

    def come_back(self, mark: Mark) -> None:
        super().come_back(mark)
        if self.later is not None:
            self.later.tell(Notice(partial(self.regions.pass_by, mark)))

    @property
    def ends_alike(self) -> bool:
        """Whether no message tells the last microbatch's passes from those before, until they are over."""
        return not self.flow.buckets and self.gathers_alike

    def peaks(self) -> dict[tuple[str, str], Counter[str]]:
        """Bytes by purpose when they are most, of each pass with one microbatch in flight."""
        found: dict[tuple[str, str], Counter[str]] = {}
        moments = _MOMENTS[min(len(_MOMENTS), self.strategy.num_micro) - 1]
        last = BACKWARD if self.later is None else WEIGHTS
        # The last microbatch stands for those before it.
        once = LATER in moments and self.ends_alike
        opened = None
        for moment in moments:
            if moment == LATER and once:
                continue
            before, over = self.regions.live, opened
            opened = self._ahead()
            lost = 0 if over is None else over.root.storage.num_bytes  # of the microbatch before, which goes now
            del over
            found[FORWARD, LATER if moment == LAST else moment] = self._most()
            self.kept = self.regions.live + lost - before
            self._back(opened, last=moment == LAST)
            if self.later is not None:
                found[BACKWARD, moment] = self._most()
                if moment == LAST and once:
                    found[BACKWARD, LATER] = found[BACKWARD, LAST]
                self.waiting = self.regions.live - before
                self.later.run(self.later.taken())
            if moment == LAST and once:
                found[last, LATER] = self._most()
            if moment == LAST:
                self.gathers.finish()
                self.buckets.finish()
                self.optimize()
            found[last, moment] = self._most()
        if once:
            found[last, LAST] = max(found[last, LATER], found[last, LAST], key=Counter.total)
        for kind in (FORWARD, BACKWARD) if self.later is None else (FORWARD, BACKWARD, WEIGHTS):
            found.setdefault((kind, FRESH), found[kind, LATER if kind == FORWARD else LAST])
            found.setdefault((kind, LATER), found[kind, FRESH])
        return found

    def _op(self, at: int, item: Op, ins: list[Tensor]) -> list[Tensor]:
        if self.later is None or item.node.name not in self._deferring:
            return super()._op(at, item, ins)
        sinks = [self._sink(read) for read in item.reads[1:]]
        return [self.later.linear(ins[0], ins[1:], sinks)]

    def _sink(self, read: ReadKey) -> Sink | None:
        """Where gradients of a parameter go."""
        if not isinstance(read, Ref):
            return self.gathers.messages[self.flow.place[read][0]].add_gradient
        return partial(self.buckets.accumulated, read.name) if self.stored[read.name].node is not None else None

    def _most(self) -> Counter[str]:
        """Since the last call."""
        return self.regions.fullest()

    def kept_by_another(self) -> int:
        """What one more microbatch keeps."""
        opened = [self._ahead()]
        before = self.m.meter.live
        opened.append(self._ahead())
        return self.m.meter.live - before

    def _ahead(self) -> _Open:
        graph, m = self.graph, self.m
        self.gathers.begin(last=False)
        held: list[Tensor] = []
        for ref in graph.received:
            meta = graph.meta(ref)
            shape = local_shape(meta.sizes, made_layout(self.strategy, ref), self.mesh)
            held.append(m.new(shape, DTYPE_BYTES[meta.dtype]))
            if graph.has_gradient(ref):
                # Gradients that are sent back stay until the pass is over.
                held[-1].node = Leaf(held.append)
        outs = self.forward(dict(zip(graph.received, held, strict=True)))
        root = outs[0]
        if graph.results:
            root = m.new((), 0)
            m.record([root], outs, [], lambda _, __: [None if out.node is None else m.like(out) for out in outs])
        nodes, m.nodes = m.nodes, []
        held += outs
        return _Open(root, nodes, held)

    def _back(self, opened: _Open, last: bool) -> None:
        self.gathers.begin(last=last)
        self.buckets.open = last and self.later is None
        self.m.nodes, opened.nodes = opened.nodes, []
        if opened.root.node is not None:
            self.m.backward(opened.root, self.m.like(opened.root))
        opened.held.clear()  # what it holds holds it: nothing else would free it when the pass is over
        self.gathers.end()
