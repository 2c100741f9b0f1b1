"""The memory of one rank in a training step: the program and its trainer, run without data.

``executor.training`` is what this stands for, line by line: what a rank stores, one pass after another forward and back
in the order of the program, gathers of parameters and buckets of gradients around it, and the optimizer. Peaks are of
tensors, and on a GPU of what cuBLAS holds (``libraries``): what kernels allocate inside themselves, what NCCL and Gloo stage,
the CUDA context, and what an allocator rounds up or cannot reuse, come on top.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from autosbp.costmodel.memory import boxes
from autosbp.costmodel.memory.again import Recomputation
from autosbp.costmodel.memory.autograd import Leaf, Machine, Notice
from autosbp.costmodel.memory.libraries import held
from autosbp.costmodel.memory.messages import IN_FLIGHT, Buckets, Gathers, Gradients
from autosbp.costmodel.memory.ops import Call, run_op, widths_of
from autosbp.costmodel.memory.repeats import Mark, Regions, Repeats, UnlikeError, find_repeats
from autosbp.costmodel.memory.splits import run_split
from autosbp.costmodel.memory.state import optimizer_bytes
from autosbp.costmodel.memory.tensors import DATA, PARAMETERS, Meter, Shape, Tensor, contiguous
from autosbp.graph.ir import DTYPE_BYTES, LogicalGraph, Ref
from autosbp.plan import Strategy
from autosbp.sbp.choices import axis_choices, implemented_axes
from autosbp.sbp.deferral import returns_late
from autosbp.sbp.parameters import ParameterFlow, parameter_flow
from autosbp.sbp.placement import NdSbp, local_shape
from autosbp.sbp.program import Box, Op
from autosbp.sbp.recompute import ReadKey

Prepared = tuple[list[Shape], list[int], Mapping[str, tuple[int, ...]]]
FULL_BYTES = 4
"""Of an element that the optimizer works on, at least (``executor.full_precision``)."""
PASSES = 3
"""Microbatches that differ: the first finds no gradients, the last gives them away."""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """``parts`` are bytes by purpose when together they are most; ``kept`` is the most that autograd keeps at once, of
    what was not there before the step."""

    parts: Mapping[str, int]
    kept: int

    @property
    def peak(self) -> int:
        return sum(self.parts.values())


def memory_bytes(
    graph: LogicalGraph, strategy: Strategy, flow: ParameterFlow | None = None, *, device: str = "cpu"
) -> dict[str, int]:
    """Bytes per device by purpose, at the moment of a step when they are most together: those of ``rank_memory``, for which
    most of blocks that are alike is not run."""
    flow = flow or parameter_flow(graph, strategy)
    run = StepRun(graph, strategy, flow, Machine(Meter(), device=device))
    if run.may_leave_out:
        run.leave_out()
    try:
        parts = run.step()
    except UnlikeError:
        return dict(rank_memory(graph, strategy, flow, device=device).parts)
    return _by_purpose(run, parts)


def rank_memory(
    graph: LogicalGraph,
    strategy: Strategy,
    flow: ParameterFlow | None = None,
    *,
    device: str = "cpu",
    sums_in_place: bool = True,
) -> RankMemory:
    """The memory of one step.

    Args:
        graph: bound at the strategy's microbatch.
        flow: the strategy's.
        device: ``cpu`` or ``cuda``: kernels differ in what they keep.
        sums_in_place: see ``autograd.Machine``.
    """
    machine = Machine(Meter(), sums_in_place=sums_in_place, device=device)
    run = StepRun(graph, strategy, flow or parameter_flow(graph, strategy), machine)
    return RankMemory(_by_purpose(run, run.step()), machine.meter.kept_peak)


def _by_purpose(run: StepRun, parts: Mapping[str, int]) -> dict[str, int]:
    parts = {**parts, "optimizer": optimizer_bytes(run.graph.trained, run.strategy)}
    order = ("parameters", "gradients", "optimizer", "activations", "gathered", "temporaries", "data")
    return {name: parts.get(name, 0) for name in order if name != "gathered" or run.flow.gathers} | held(run.m.device)


class StepRun:
    """One step's passes, on tensors without data."""

    def __init__(self, graph: LogicalGraph, strategy: Strategy, flow: ParameterFlow, m: Machine) -> None:
        self.graph, self.strategy, self.flow, self.m, self.mesh = graph, strategy, flow, m, strategy.mesh
        self.gradients = Gradients(m)
        self.stored = {leaf.name: self._stored(leaf.name) for leaf in graph.parameters}
        self.buckets = Buckets(m, flow, self.stored, self.gradients)
        for leaf in graph.trained:
            self.stored[leaf.name].node = self._leaf(leaf.name)
        each_use = strategy.gather == "use"
        self.gathers = Gathers(
            m, flow, each_use, self.stored, self.gradients, self.mesh, self.buckets.arrived, late=returns_late(strategy)
        )
        count = strategy.num_micro
        self.data = [
            m.new((count * leaf.meta.sizes[0], *leaf.meta.sizes[1:]), DTYPE_BYTES[leaf.meta.dtype], purpose=DATA)
            for leaf in graph.inputs
        ]
        self.constants = {
            leaf.name: m.new(leaf.meta.sizes, DTYPE_BYTES[leaf.meta.dtype], purpose=DATA) for leaf in graph.constants
        }
        self.last_reader = self._last_readers()
        self.prepared: dict[int, Prepared] = {}
        self.again = Recomputation(m, graph, self.run_items, self.last_reader)
        self.repeats = Repeats((), ())
        self.regions = Regions(m.meter)

    def _stored(self, name: str) -> Tensor:
        meta = self.graph.meta(Ref(name))
        shape = local_shape(meta.sizes, self.strategy.parameters[name], self.mesh)
        return self.m.new(shape, DTYPE_BYTES[meta.dtype], purpose=PARAMETERS)

    def _leaf(self, name: str) -> Leaf:
        return Leaf(lambda gradient: self.buckets.accumulated(name, gradient))

    def _last_readers(self) -> dict[int, list[ReadKey]]:
        """After which item which values have no reader left."""
        last: dict[ReadKey, int] = {}
        for at, item in enumerate(self.flow.items):
            if isinstance(item, Op):
                last.update({Ref(item.node.name, index): at for index in range(len(item.node.outputs))})
                last.update(dict.fromkeys(item.reads, at))
            elif item.key not in self.flow.place:
                last[item.key] = last[item.ref] = at
            else:
                last[item.key] = at
        kept = {Ref(name) for name in (*self.stored, *self.constants)} | set(self.outputs)
        found: dict[int, list[ReadKey]] = {}
        for key, at in last.items():
            if key not in kept:
                found.setdefault(at, []).append(key)
        return found

    @property
    def outputs(self) -> tuple[ReadKey, ...]:
        """The loss, or what a pipeline's chunk sends on."""
        last = self.flow.items[-1]
        return self.graph.results or (last.key if isinstance(last, Box) else Ref(last.node.name),)

    @property
    def gathers_alike(self) -> bool:
        """Whether every microbatch gathers what the others do, and, but the first, finds as much on its way back."""
        gathers = self.flow.gathers
        if not gathers:
            return True
        # Where copies of one parameter are not flat, the last microbatch adds up their gradients as they come.
        return self.gathers_anew and len(gathers) >= IN_FLIGHT and all(gather.flat for gather in gathers)

    @property
    def gathers_anew(self) -> bool:
        """Whether no microbatch finds what another one gathered."""
        return not self.flow.gathers or self.strategy.gather == "use"

    @property
    def may_leave_out(self) -> bool:
        """Whether blocks that are alike are, in all passes of ``step``: gradients get to buckets one by one."""
        if self.flow.buckets:
            return self.gathers_alike and self.strategy.num_micro >= PASSES
        return self.gathers_anew

    def leave_out(self, deferring: frozenset[str] = frozenset()) -> None:
        """Run few of the blocks that are alike; ops may leave gradients of their weights for a pass of their own."""
        self.repeats = find_repeats(self.graph, self.strategy, self.flow, self.last_reader, self.outputs, deferring)

    def step(self) -> Counter[str]:
        """One step: the passes that differ. Bytes by purpose when they are most; ``UnlikeError`` where blocks are left out
        that are not alike."""
        passes = min(self.strategy.num_micro, PASSES)
        # The last one's gradients only leave their own memory for that of buckets, which is there from the start: it never
        # takes more than those before it.
        run = passes - (passes == PASSES and self.gathers_alike)
        found = []
        for at in range(run):
            self.gathers.begin(last=at == passes - 1)
            self.buckets.open = at == passes - 1
            (loss,) = self.forward({})
            found.append(self.regions.fullest())
            if passes > 1:
                mean = self.m.like(loss)
                self.m.record([mean], [loss], [], lambda grads, _: [self.m.like(grads[0])])
                loss = mean
            self.m.backward(loss, self.m.like(loss))
            self.gathers.end()
            found.append(self.regions.fullest())
        self.gathers.finish()
        found.append(self.regions.fullest())
        self.buckets.finish()
        self.regions.begin_anew(-self._left_in_buckets())
        self.optimize()
        found.append(self.regions.fullest())
        return max(found, key=Counter.total)

    def _left_in_buckets(self) -> int:
        """Bytes of gradients of blocks that are left out which go to buckets."""
        within = {name for bucket in self.flow.buckets if len(bucket.names) > 1 for name in bucket.names}
        return sum(
            skip.count * self.stored[name].num_bytes
            for skip in self.repeats.skips
            for name in self.repeats.parameters_of_copy(skip) & within
        )

    def optimize(self) -> None:
        """The optimizer's fused kernels need nothing, but float32 gradients of shorter parameters, one at a time."""
        for leaf in self.graph.trained if not self.strategy.offload else ():
            stored = self.stored[leaf.name]
            if stored.width < FULL_BYTES:
                self.m.new(stored.shape, FULL_BYTES)

    def forward(self, received: Mapping[ReadKey, Tensor]) -> list[Tensor]:
        """One microbatch; what a chunk receives is given."""
        values: dict[ReadKey, Tensor] = {Ref(name): part for name, part in self.stored.items()}
        values.update(received)
        values.update({Ref(name): tensor for name, tensor in self.constants.items()})
        for leaf, whole in zip(self.graph.inputs, self.data, strict=True):
            values[Ref(leaf.name)] = whole.view(leaf.meta.sizes, contiguous(leaf.meta.sizes))
        begins = {segment.first: segment for segment in self.flow.segments}
        at = 0
        while at < len(self.flow.items):
            mark = self.repeats.marks.get(at)
            if mark is not None:
                self.repeats.check(mark, values)
                self.regions.pass_by(mark)
                self.m.nodes.append(Notice(partial(self.come_back, mark)))
                if mark.is_last:
                    self.repeats.move_on(mark.skip, values)
                    at = mark.skip.end
            if at in begins:
                self.again.run(begins[at], values)
                at = begins[at].last + 1
            else:
                self.run_items(at, at, values, again=False)
                at += 1
        return [values[key] for key in self.outputs]

    def come_back(self, mark: Mark) -> None:
        """Backward has come to it."""
        self.regions.pass_by(mark)
        if mark.is_last:
            for place, boxes in self.repeats.gathered(mark.skip, self.flow).items():
                self.gathers.leave_out(place, boxes)

    def run_items(self, first: int, last: int, values: dict[ReadKey, Tensor], *, again: bool) -> None:
        """Items ``first`` to ``last`` of the program: what they read is in ``values``, then what they make; what has no
        reader left is taken out."""
        for at in range(first, last + 1):
            item = self.flow.items[at]
            done = self.last_reader.get(at, ())
            if isinstance(item, Box):
                values[item.key] = self._box(item, values, at if again else None, last=item.ref in done)
            else:
                outs = self._op(at, item, [values[read] for read in item.reads])
                values.update({Ref(item.node.name, index): out for index, out in enumerate(outs)})
                node = outs[0].node
                del outs
                before = self.gathers.before_backward(at)
                if before is not None and node is not None:
                    node.before = before  # type: ignore[attr-defined]
            for key in done:
                values.pop(key, None)

    def _box(self, box: Box, values: dict[ReadKey, Tensor], again: int | None, *, last: bool) -> Tensor:
        if box.key in self.flow.place:
            return self.gathers.fetch(box.key, again)
        if box.data:
            return self._cut(values[box.ref], box.dst)
        # The last reader's first step is the last that holds the value, so this frame must not.
        take = values.pop if last else values.__getitem__
        return boxes.boxed(self.m, take(box.ref), box.steps, self.mesh)

    def _cut(self, x: Tensor, layout: NdSbp) -> Tensor:
        part = x.view(local_shape(x.shape, layout, self.mesh), x.strides)
        return self.m.like(part) if any(sbp.is_partial for sbp in layout) else part

    def _op(self, at: int, item: Op, ins: list[Tensor]) -> list[Tensor]:
        if at not in self.prepared:
            self.prepared[at] = self._prepare(item)
        shapes, widths, axes = self.prepared[at]
        call = Call(self.m, self.graph, item.node, ins, shapes, widths)
        del ins
        return run_split(call, axes, self.mesh) if axes else run_op(call)

    def _prepare(self, item: Op) -> Prepared:
        """What is the same in every pass: local shapes, bytes of elements, and axes that a split implementation serves."""
        node = item.node
        if item.signature is None:
            return [meta.sizes for meta in node.outputs], widths_of(node), {}
        layouts = zip(node.outputs, item.signature.outs, strict=True)
        shapes = [local_shape(meta.sizes, layout, self.mesh) for meta, layout in layouts]
        choices = axis_choices(self.graph, node, item.signature, self.mesh.ndim)
        return shapes, widths_of(node), implemented_axes(choices)
