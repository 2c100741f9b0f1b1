"""Memory of one rank of a pipeline stage.

Each chunk runs on meta tensors as in ``costmodel.memory.rank_memory``, one microbatch after another; a second forward
pass before the first backward shows what a microbatch keeps between its passes. The order of the stage's passes gives
the number of microbatches in flight at each moment. A chunk keeps received and sent values until the microbatch's
backward; received gradients only during it. Deferred weight gradients (zero bubble) are a pass of their own. Sent
tensors stay until the runtime waits for them (``keeps_sent_tensors``). A message-driven stage also has registers for messages.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from autosbp.costmodel.chunk_cache import ChunkCostCache, chunk_key
from autosbp.costmodel.memory.autograd import BackwardHook, BackwardNode, GradientLeaf, MetaAutograd
from autosbp.costmodel.memory.deferred_wgrad import DeferredWgrads, Sink
from autosbp.costmodel.memory.extrapolation import CopyBoundary, RepeatMismatchError
from autosbp.costmodel.memory.library_workspace import library_bytes_by_purpose
from autosbp.costmodel.memory.meta_tensors import MemoryMeter, MetaTensor
from autosbp.costmodel.memory.optimizer_state import optimizer_bytes
from autosbp.costmodel.memory.rank_memory import StepRun
from autosbp.costmodel.pipeline_program import PipelineChunk, PipelineProgram
from autosbp.graph.ir import DTYPE_BYTES, Ref
from autosbp.plan.plan import Strategy
from autosbp.program.activation_checkpointing import ReadKey
from autosbp.program.deferred_wgrad import deferred_linear_ops
from autosbp.program.program import Op, output_layout
from autosbp.sbp.layout import local_shape
from autosbp.schedules.message_driven import GRADIENT_REGISTERS
from autosbp.schedules.passes import BACKWARD, FORWARD, KINDS, WGRAD, Ints, Order, stage_order

Peaks = Mapping[tuple[str, str], Counter[str]]
PURPOSES = ("parameters", "gradients", "optimizer", "activations", "gathered", "temporaries", "data")
RESIDENT = ("parameters", "gradients", "data")
"""Purposes that stay allocated between passes, regardless of microbatches in flight; copies of parameters that are
gathered once a step stay too.
"""
NO_GRADIENTS, HAS_GRADIENTS, LAST_BACKWARD = "fresh", "later", "last"
"""Passes before a chunk has gradients, passes that find some, and the last backward, which reduces them."""


def stage_memory(
    stages: PipelineProgram, stage: int, *, device: str = "cpu", known: ChunkCostCache | None = None
) -> dict[str, int]:
    """Bytes by purpose at the peak of a step.

    ``known`` caches the needs of chunks for identical chunks of other stages and strategies.
    """
    strategy = stages.strategy
    known = ChunkCostCache() if known is None else known
    needs = {chunk.index: _needs(stages, chunk, device, known) for chunk in stages.of(stage)}
    order = stage_order(stages.pipeline, stage, strategy.num_micro)
    total = _peak_of_passes(order, needs, strategy.num_micro - 1, _registers(stages, stage))
    total["optimizer"] = optimizer_bytes(stages.trained_of(stage), strategy)
    return {name: total[name] for name in PURPOSES if total[name] or name != "gathered"} | library_bytes_by_purpose(
        device
    )


@dataclass(frozen=True, slots=True)
class ChunkMemory:
    """Memory of one chunk alone.

    Args:
        peaks: bytes by purpose at the peak of each pass, with one microbatch in flight.
        resident: bytes by purpose between passes.
        kept: bytes that a microbatch keeps between forward and backward.
        deferred: bytes that it keeps between backward and its weight gradients.
        sent: bytes of sent tensors that it keeps after both.
    """

    peaks: Peaks
    resident: Counter[str]
    kept: int
    deferred: int
    sent: int

    def there(self, when: str) -> Counter[str]:
        return self.resident - Counter(gradients=self.resident["gradients"]) if when == NO_GRADIENTS else self.resident


def _needs(stages: PipelineProgram, chunk: PipelineChunk, device: str, known: ChunkCostCache) -> ChunkMemory:
    strategy, schedule = stages.strategy, stages.pipeline.schedule

    def needs() -> ChunkMemory:
        peaks, kept, deferred = known.of(
            _run_key(stages, chunk, device), partial(_run, chunk, strategy, device, stages.may_defer_wgrads)
        )
        names = (*RESIDENT, *(["gathered"] if strategy.gather == "step" else []))
        resident = Counter({name: peaks[FORWARD, HAS_GRADIENTS][name] for name in names})
        values, gradients = schedule.keeps_sent_tensors
        ahead = sum(size for _, size, _ in stages.sent_values(chunk.index))
        back = sum(
            size for _, size, gradient in (stages.sent_values(chunk.index - 1) if chunk.index else ()) if gradient
        )
        return ChunkMemory(peaks, resident, kept, deferred, values * ahead + gradients * back)

    return known.of(("needs", schedule, *_run_key(stages, chunk, device)), needs)


def memory_runs(
    stages: PipelineProgram, chunks: Iterable[PipelineChunk], device: str
) -> dict[Hashable, Callable[[], object]]:
    """The expensive parts of chunks' memory, as tasks for ``ChunkCostCache.prepare``."""
    return {
        _run_key(stages, chunk, device): partial(_run, chunk, stages.strategy, device, stages.may_defer_wgrads)
        for chunk in chunks
    }  # fmt: skip


def _run_key(stages: PipelineProgram, chunk: PipelineChunk, device: str) -> tuple[Hashable, ...]:
    return "memory", device, stages.may_defer_wgrads, stages.key, chunk_key(stages, chunk)


def _run(chunk: PipelineChunk, strategy: Strategy, device: str, defers: bool) -> tuple[Peaks, int, int]:
    """(peaks by pass, bytes per microbatch in flight, bytes per microbatch between backward and weight gradients)."""
    run = ChunkRun(chunk, strategy, MetaAutograd(MemoryMeter(), device=device), defers=defers)
    if run.can_skip_repeats:
        run.skip_repeats()
    try:
        peaks = run.peaks()
    except RepeatMismatchError:
        run = ChunkRun(chunk, strategy, MetaAutograd(MemoryMeter(), device=device), defers=defers)
        peaks = run.peaks()
    if run.flow.gathers and strategy.num_micro == 1:
        run.kept = ChunkRun(chunk, strategy, MetaAutograd(MemoryMeter(), device=device)).bytes_per_microbatch()
    return peaks, run.kept, run.waiting


def _peak_of_passes(order: Order, needs: Mapping[int, ChunkMemory], last: int, beside: Counter[str]) -> Counter[str]:
    """Bytes by purpose during the pass with the highest total.

    Args:
        last: index of the last microbatch.
        beside: further bytes by kind of pass.
    """
    each = [needs[chunk] for chunk in sorted(needs)]
    known = _classify_passes(order, last)
    waiting = {when: [need.there(when).total() for need in each] for when in (NO_GRADIENTS, HAS_GRADIENTS)}
    there = [sum(waiting[NO_GRADIENTS])]  # by number of chunks that have gradients
    for chunk in known.firsts:
        there.append(there[-1] + waiting[HAS_GRADIENTS][chunk] - waiting[NO_GRADIENTS][chunk])
    # Per kind of moment: its change for later passes, other bytes than microbatches in flight, and its own peak.
    changes, besides, peaks = [], [], []
    for kind, moment, own, have in known.kinds:
        need = each[own]
        runs = {FORWARD: 0, BACKWARD: need.kept, WGRAD: need.deferred}[kind]  # in flight, and in the pass's own peak
        keeps = {FORWARD: need.kept, BACKWARD: need.deferred + need.sent, WGRAD: 0}[kind]
        changes.append(keeps - runs)
        besides.append(beside[kind] - runs)
        others = there[have] - waiting[HAS_GRADIENTS if own in known.firsts[:have] else NO_GRADIENTS][own]
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
        parts += (
            other.there(HAS_GRADIENTS if at in known.firsts[:have] else NO_GRADIENTS) if at != at_work else Counter()
        )
    return parts


@dataclass(frozen=True, slots=True, eq=False)
class _PassClasses:
    """The passes of a stage, classified by everything that memory depends on.

    ``kinds`` are (kind of pass, its moment, index of its chunk in the stage, number of chunks that have gradients by
    then), and ``kind`` gives the class of each pass. ``firsts`` are the chunks in the order in which they first get
    gradients.
    """

    kinds: list[tuple[str, str, int, int]]
    kind: Ints
    firsts: list[int]


@lru_cache(maxsize=256)
def _classify_passes(order: Order, last: int) -> _PassClasses:
    own = np.searchsorted(np.unique(order.chunks), order.chunks)
    chunks = range(int(own.max()) + 1)
    whens = (NO_GRADIENTS, HAS_GRADIENTS, LAST_BACKWARD)
    forward, backward = (order.kinds == KINDS.index(kind) for kind in (FORWARD, BACKWARD))
    # A chunk has gradients from the end of its first backward pass on.
    firsts = np.array([int(np.argmax(backward & (own == at))) for at in chunks])
    places = np.arange(len(own))
    when = np.where(~forward & (order.micros == last), whens.index(LAST_BACKWARD), places > firsts[own])
    have = np.searchsorted(np.sort(firsts), places)
    shape = len(KINDS), len(whens), len(chunks), len(chunks) + 1
    numbers = np.ravel_multi_index((order.kinds, when, own, have), shape)
    place = np.zeros(math.prod(shape), dtype=np.int64)
    place[numbers] = 1
    found = np.flatnonzero(place)
    place[found] = np.arange(len(found))
    columns = (column.tolist() for column in np.unravel_index(found, shape))
    kinds = [(KINDS[of], whens[moment], *rest) for of, moment, *rest in zip(*columns, strict=True)]
    return _PassClasses(kinds, place[numbers], np.argsort(firsts, kind="stable").tolist())


def _registers(stages: PipelineProgram, stage: int) -> Counter[str]:
    """Bytes in registers of a message-driven stage, by the kind of the running pass.

    One waiting input while the maximum number of microbatches is in flight, and gradients, received and to be sent. A
    backward pass holds one register of each kind of gradient itself.
    """
    pipeline, found = stages.pipeline, Counter[str]()
    if pipeline.schedule.is_message_driven:
        before, behind = (stages.sent_values(at) if at >= 0 else [] for at in (stage - 1, stage))
        inputs = sum(size for _, size, _ in before) if stages.strategy.num_micro > pipeline.num_stages - stage else 0
        gradients = sum(size for _, size, gradient in (*before, *behind) if gradient)
        found[FORWARD] = inputs + GRADIENT_REGISTERS * gradients
        found[BACKWARD] = inputs + (GRADIENT_REGISTERS - 1) * gradients
    return found


_MOMENTS = ((LAST_BACKWARD,), (NO_GRADIENTS, LAST_BACKWARD), (NO_GRADIENTS, HAS_GRADIENTS, LAST_BACKWARD))
"""Moments to simulate for 1, 2, and 3 or more microbatches; further ones equal those in the middle."""


@dataclass(slots=True)
class _InFlightMicrobatch:
    """A microbatch between its passes: the nodes that autograd recorded, and the tensors that the stage holds itself."""

    root: MetaTensor
    nodes: list[BackwardNode | BackwardHook]
    held: list[MetaTensor]


class ChunkRun(StepRun):
    """The passes of a chunk.

    Each microbatch in flight has its own recorded nodes. After ``peaks``, ``kept`` is what the last microbatch keeps,
    like any other but the first, which gathers parameters that are gathered once a step. ``waiting`` is what a
    microbatch keeps between its backward and its weight gradients, if the schedule ``defers`` these.
    """

    def __init__(
        self, chunk: PipelineChunk, strategy: Strategy, machine: MetaAutograd, *, defers: bool = False
    ) -> None:
        super().__init__(chunk.graph, strategy, chunk.flow, machine)
        self.kept = self.waiting = 0
        self.later = DeferredWgrads(machine) if defers else None
        self._deferring = deferred_linear_ops(chunk.graph, strategy, chunk.flow) if defers else frozenset()

    @property
    def can_skip_repeats(self) -> bool:
        return not self.flow.buckets and self.gathers_every_microbatch

    def skip_repeats(self, deferring: frozenset[str] = frozenset()) -> None:
        super().skip_repeats(deferring or self._deferring)

    def on_backward(self, mark: CopyBoundary) -> None:
        super().on_backward(mark)
        if self.later is not None:
            self.later.tell(BackwardHook(partial(self.regions.cross_boundary, mark)))

    @property
    def last_microbatch_is_uniform(self) -> bool:
        """Whether no communication distinguishes the last microbatch's passes from earlier ones until they are over."""
        return not self.flow.buckets and self.gathers_are_uniform

    def peaks(self) -> dict[tuple[str, str], Counter[str]]:
        """Bytes by purpose at the peak of each pass with one microbatch in flight."""
        found: dict[tuple[str, str], Counter[str]] = {}
        moments = _MOMENTS[min(len(_MOMENTS), self.strategy.num_micro) - 1]
        last = BACKWARD if self.later is None else WGRAD
        # The last microbatch represents those before it.
        once = HAS_GRADIENTS in moments and self.last_microbatch_is_uniform
        opened = None
        for moment in moments:
            if moment == HAS_GRADIENTS and once:
                continue
            before, over = self.regions.live, opened
            opened = self._forward_microbatch()
            lost = 0 if over is None else over.root.storage.num_bytes  # bytes of the previous microbatch, freed here
            del over
            found[FORWARD, HAS_GRADIENTS if moment == LAST_BACKWARD else moment] = self._peak()
            self.kept = self.regions.live + lost - before
            self._backward_microbatch(opened, last=moment == LAST_BACKWARD)
            if self.later is not None:
                found[BACKWARD, moment] = self._peak()
                if moment == LAST_BACKWARD and once:
                    found[BACKWARD, HAS_GRADIENTS] = found[BACKWARD, LAST_BACKWARD]
                self.waiting = self.regions.live - before
                self.later.run(self.later.taken())
            if moment == LAST_BACKWARD and once:
                found[last, HAS_GRADIENTS] = self._peak()
            if moment == LAST_BACKWARD:
                self.gathers.schedule.finish()
                self.buckets.schedule.finish()
                self.optimize()
            found[last, moment] = self._peak()
        if once:
            found[last, LAST_BACKWARD] = max(found[last, HAS_GRADIENTS], found[last, LAST_BACKWARD], key=Counter.total)
        for kind in (FORWARD, BACKWARD) if self.later is None else (FORWARD, BACKWARD, WGRAD):
            found.setdefault((kind, NO_GRADIENTS), found[kind, HAS_GRADIENTS if kind == FORWARD else LAST_BACKWARD])
            found.setdefault((kind, HAS_GRADIENTS), found[kind, NO_GRADIENTS])
        return found

    def _op(self, at: int, item: Op, ins: list[MetaTensor]) -> list[MetaTensor]:
        if self.later is None or item.node.name not in self._deferring:
            return super()._op(at, item, ins)
        sinks = [self._sink(read) for read in item.reads[1:]]
        return [self.later.linear(ins[0], ins[1:], sinks)]

    def _sink(self, read: ReadKey) -> Sink | None:
        """Receiver of a parameter's gradients."""
        if not isinstance(read, Ref):
            place, at = self.flow.place[read]
            return partial(self.gathers.messages[place].add_gradient, at)
        return partial(self.buckets.add_gradient, read.name) if self.stored[read.name].node is not None else None

    def _peak(self) -> Counter[str]:
        """Bytes by purpose at the peak since the last call."""
        return self.regions.fullest()

    def bytes_per_microbatch(self) -> int:
        """Bytes that one more microbatch keeps."""
        opened = [self._forward_microbatch()]
        before = self.m.meter.live
        opened.append(self._forward_microbatch())
        return self.m.meter.live - before

    def _forward_microbatch(self) -> _InFlightMicrobatch:
        graph, m = self.graph, self.m
        self.gathers.schedule.begin(last=False)
        held: list[MetaTensor] = []
        for ref in graph.received_refs:
            meta = graph.meta(ref)
            shape = local_shape(meta.sizes, output_layout(self.strategy, ref), self.mesh)
            held.append(m.new(shape, DTYPE_BYTES[meta.dtype]))
            if graph.has_gradient(ref):
                # Gradients that are sent back stay until the end of the pass.
                held[-1].node = GradientLeaf(held.append)
        outs = self.forward(dict(zip(graph.received_refs, held, strict=True)))
        root = outs[0]
        if graph.results:
            root = m.new((), 0)
            m.record([root], outs, [], lambda _, __: [None if out.node is None else m.empty_like(out) for out in outs])
        nodes, m.nodes = m.nodes, []
        held += outs
        return _InFlightMicrobatch(root, nodes, held)

    def _backward_microbatch(self, opened: _InFlightMicrobatch, last: bool) -> None:
        self.gathers.schedule.begin(last=last)
        self.buckets.schedule.open = last and self.later is None
        self.m.nodes, opened.nodes = opened.nodes, []
        if opened.root.node is not None:
            self.m.backward(opened.root, self.m.empty_like(opened.root))
        opened.held.clear()  # breaks reference cycles, so that tensors are freed at the end of the pass
        self.gathers.schedule.end()
