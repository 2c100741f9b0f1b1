"""Memory of one rank in a training step: the program and its trainer, run on meta tensors.

Mirrors ``executor.training`` line by line: stored parameters, forward and backward passes in program order, parameter
gathers and gradient buckets around them, and the optimizer. Peaks count tensors and, on a GPU, the workspaces of cuBLAS
(``costmodel.memory.library_workspace``). Allocations inside kernels, NCCL and Gloo buffers, the CUDA context, and the
allocator's rounding and fragmentation come on top.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from autosbp.costmodel.memory import resharding
from autosbp.costmodel.memory.activation_checkpointing import MetaCheckpointing
from autosbp.costmodel.memory.autograd import BackwardHook, GradientLeaf, MetaAutograd
from autosbp.costmodel.memory.extrapolation import (
    CopyBoundary,
    MeteredRegions,
    RepeatMismatchError,
    SkippedProgram,
    find_skippable_copies,
)
from autosbp.costmodel.memory.gather_and_bucket_buffers import BucketBuffers, GatherBuffers, GradientBuffers
from autosbp.costmodel.memory.library_workspace import library_bytes_by_purpose
from autosbp.costmodel.memory.meta_tensors import DATA, PARAMETERS, MemoryMeter, MetaTensor, Shape, contiguous
from autosbp.costmodel.memory.op_memory import OpCall, run_op, widths_of
from autosbp.costmodel.memory.optimizer_state import optimizer_bytes
from autosbp.costmodel.memory.split_ops import run_split
from autosbp.graph.ir import DTYPE_BYTES, LogicalGraph, Ref
from autosbp.plan.plan import Strategy
from autosbp.program.activation_checkpointing import ReadKey
from autosbp.program.chosen_options import checked_choices, implemented_axes
from autosbp.program.deferred_wgrad import gradients_return_at_end
from autosbp.program.gather_schedule import IN_FLIGHT
from autosbp.program.parameter_flow import ParameterFlow, parameter_flow
from autosbp.program.program import Boxing, Op
from autosbp.sbp.layout import NdSbp, local_shape

Prepared = tuple[list[Shape], list[int], Mapping[str, tuple[int, ...]]]
DISTINCT_MICROBATCHES = 3
"""Number of microbatches that differ: the first finds no gradients, the last reduces them."""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Memory of a step.

    ``parts`` are bytes by purpose at the peak. ``kept`` is the peak of the bytes saved by autograd, without what
    existed before the step.
    """

    parts: Mapping[str, int]
    kept: int

    @property
    def peak(self) -> int:
        return sum(self.parts.values())


def memory_bytes(
    graph: LogicalGraph, strategy: Strategy, flow: ParameterFlow | None = None, *, device: str = "cpu"
) -> dict[str, int]:
    """Bytes per device by purpose at the peak of a step.

    Equal to ``rank_memory``, but most of the repeated blocks are extrapolated instead of run.
    """
    flow = flow or parameter_flow(graph, strategy)
    run = StepRun(graph, strategy, flow, MetaAutograd(MemoryMeter(), device=device))
    if run.can_skip_repeats:
        run.skip_repeats()
    try:
        parts = run.step()
    except RepeatMismatchError:
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
        graph: bound at the strategy's microbatch size.
        flow: the strategy's parameter flow.
        device: ``cpu`` or ``cuda``; their kernels save different tensors.
        sums_in_place: see ``autograd.MetaAutograd``.
    """
    machine = MetaAutograd(MemoryMeter(), sums_in_place=sums_in_place, device=device)
    run = StepRun(graph, strategy, flow or parameter_flow(graph, strategy), machine)
    return RankMemory(_by_purpose(run, run.step()), machine.meter.kept_peak)


def _by_purpose(run: StepRun, parts: Mapping[str, int]) -> dict[str, int]:
    parts = {**parts, "optimizer": optimizer_bytes(run.graph.trained, run.strategy)}
    order = ("parameters", "gradients", "optimizer", "activations", "gathered", "temporaries", "data")
    return {
        name: parts.get(name, 0) for name in order if name != "gathered" or run.flow.gathers
    } | library_bytes_by_purpose(run.m.device)


class StepRun:
    """Passes of one step on meta tensors."""

    def __init__(self, graph: LogicalGraph, strategy: Strategy, flow: ParameterFlow, m: MetaAutograd) -> None:
        self.graph, self.strategy, self.flow, self.m, self.mesh = graph, strategy, flow, m, strategy.mesh
        self.gradients = GradientBuffers(m, {leaf.name: leaf.meta.gradient_width for leaf in graph.parameters})
        self.stored = {leaf.name: self._stored(leaf.name) for leaf in graph.parameters}
        self.buckets = BucketBuffers(m, flow, self.stored, self.gradients)
        for leaf in graph.trained:
            self.stored[leaf.name].node = self._leaf(leaf.name)
        each_use = strategy.gather == "use"
        self.gathers = GatherBuffers(
            m,
            flow,
            each_use,
            self.stored,
            self.gradients,
            self.mesh,
            self.buckets.schedule.mark_ready,
            late=gradients_return_at_end(strategy),
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
        self.again = MetaCheckpointing(m, graph, self.run_items, self.last_reader)
        self.repeats = SkippedProgram((), ())
        self.regions = MeteredRegions(m.meter)

    def _stored(self, name: str) -> MetaTensor:
        meta = self.graph.meta(Ref(name))
        shape = local_shape(meta.sizes, self.strategy.parameters[name], self.mesh)
        return self.m.new(shape, DTYPE_BYTES[meta.dtype], purpose=PARAMETERS)

    def _leaf(self, name: str) -> GradientLeaf:
        return GradientLeaf(lambda gradient: self.buckets.add_gradient(name, gradient), self.gradients.widths[name])

    def _last_readers(self) -> dict[int, list[ReadKey]]:
        """Values by the item that reads them last."""
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
        """The loss, or the values that a pipeline chunk sends to the next one."""
        last = self.flow.items[-1]
        return self.graph.results or (last.key if isinstance(last, Boxing) else Ref(last.node.name),)

    @property
    def gathers_are_uniform(self) -> bool:
        """Whether all microbatches gather the same, and all but the first start with the same memory."""
        gathers = self.flow.gathers
        if not gathers:
            return True
        # If a gather is not flat, the last microbatch accumulates its gradients as they arrive.
        return self.gathers_every_microbatch and len(gathers) >= IN_FLIGHT and all(gather.flat for gather in gathers)

    @property
    def gathers_every_microbatch(self) -> bool:
        """Whether no microbatch reuses what an earlier one gathered."""
        return not self.flow.gathers or self.strategy.gather == "use"

    @property
    def can_skip_repeats(self) -> bool:
        """Whether repeated blocks may be skipped in all passes of ``step``: gradients enter buckets one by one."""
        if self.flow.buckets:
            return self.gathers_are_uniform and self.strategy.num_micro >= DISTINCT_MICROBATCHES
        return self.gathers_every_microbatch

    def skip_repeats(self, deferring: frozenset[str] = frozenset()) -> None:
        """Skip most repeated blocks; ``deferring`` are ops with deferred weight gradients."""
        self.repeats = find_skippable_copies(
            self.graph, self.strategy, self.flow, self.last_reader, self.outputs, deferring
        )

    def step(self) -> Counter[str]:
        """Run the passes of one step that differ.

        Returns:
            Bytes by purpose at the peak.

        Raises:
            UnlikeError: if the blocks that stand for skipped ones differ.
        """
        passes = min(self.strategy.num_micro, DISTINCT_MICROBATCHES)
        # In the last microbatch, gradients only move from their own memory to preallocated buckets: its peak is never
        # above that of earlier ones.
        run = passes - (passes == DISTINCT_MICROBATCHES and self.gathers_are_uniform)
        found = []
        for at in range(run):
            self.gathers.schedule.begin(last=at == passes - 1)
            self.buckets.schedule.open = at == passes - 1
            (loss,) = self.forward({})
            found.append(self.regions.fullest())
            if passes > 1:
                mean = self.m.empty_like(loss)
                self.m.record([mean], [loss], [], lambda grads, _: [self.m.empty_like(grads[0])])
                loss = mean
            self.m.backward(loss, self.m.empty_like(loss))
            self.gathers.schedule.end()
            found.append(self.regions.fullest())
        self.gathers.schedule.finish()
        found.append(self.regions.fullest())
        self.buckets.schedule.finish()
        self.regions.reset(-self._skipped_bucket_bytes())
        self.optimize()
        found.append(self.regions.fullest())
        return max(found, key=Counter.total)

    def _skipped_bucket_bytes(self) -> int:
        """Bytes of the skipped blocks' gradients that are moved to buckets."""
        within = {name for bucket in self.flow.buckets if len(bucket.names) > 1 for name in bucket.names}
        return sum(
            skip.count * self.stored[name].num_bytes
            for skip in self.repeats.skips
            for name in self.repeats.parameters_of_copy(skip) & within
        )

    def optimize(self) -> None:
        """The optimizer's fused kernels allocate only float32 copies of half-precision gradients, one at a time."""
        for leaf in self.graph.trained if not self.strategy.offload else ():
            if leaf.meta.gradient_width < leaf.meta.optimizer_width:
                self.m.new(self.stored[leaf.name].shape, leaf.meta.optimizer_width)

    def forward(self, received: Mapping[ReadKey, MetaTensor]) -> list[MetaTensor]:
        """Run one microbatch forward; ``received`` are the values that a chunk receives."""
        values: dict[ReadKey, MetaTensor] = {Ref(name): part for name, part in self.stored.items()}
        values.update(received)
        values.update({Ref(name): tensor for name, tensor in self.constants.items()})
        for leaf, whole in zip(self.graph.inputs, self.data, strict=True):
            values[Ref(leaf.name)] = whole.view(leaf.meta.sizes, contiguous(leaf.meta.sizes))
        begins = {segment.first: segment for segment in self.flow.segments}
        at = 0
        while at < len(self.flow.items):
            mark = self.repeats.boundaries.get(at)
            if mark is not None:
                self.repeats.check(mark, values)
                self.regions.cross_boundary(mark)
                self.m.nodes.append(BackwardHook(partial(self.on_backward, mark)))
                if mark.is_last:
                    self.repeats.rename_to_skipped(mark.skip, values)
                    at = mark.skip.end
            if at in begins:
                self.again.run(begins[at], values)
                at = begins[at].last + 1
            else:
                self.run_items(at, at, values, again=False)
                at += 1
        return [values[key] for key in self.outputs]

    def on_backward(self, mark: CopyBoundary) -> None:
        """Handle backward reaching a boundary."""
        self.regions.cross_boundary(mark)
        if mark.is_last:
            for place, boxes in self.repeats.gathered(mark.skip, self.flow).items():
                self.gathers.skip_gradients(place, boxes)

    def run_items(self, first: int, last: int, values: dict[ReadKey, MetaTensor], *, again: bool) -> None:
        """Run items ``first`` to ``last`` of the program.

        Reads from ``values``, adds results to it, and removes values without further readers. ``again``: the items are
        recomputed for backward.
        """
        for at in range(first, last + 1):
            item = self.flow.items[at]
            done = self.last_reader.get(at, ())
            if isinstance(item, Boxing):
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

    def _box(self, box: Boxing, values: dict[ReadKey, MetaTensor], again: int | None, *, last: bool) -> MetaTensor:
        if box.key in self.flow.place:
            return self.gathers.fetch(box.key, again)
        if box.data:
            return self._cut(values[box.ref], box.dst)
        # The last reader's first step must be the last holder of the value, so this frame must not hold it.
        take = values.pop if last else values.__getitem__
        return resharding.box(self.m, take(box.ref), box.steps, self.mesh)

    def _cut(self, x: MetaTensor, layout: NdSbp) -> MetaTensor:
        part = x.view(local_shape(x.shape, layout, self.mesh), x.strides)
        return self.m.empty_like(part) if any(sbp.is_partial for sbp in layout) else part

    def _op(self, at: int, item: Op, ins: list[MetaTensor]) -> list[MetaTensor]:
        if at not in self.prepared:
            self.prepared[at] = self._prepare(item)
        shapes, widths, axes = self.prepared[at]
        call = OpCall(self.m, self.graph, item.node, ins, shapes, widths)
        del ins
        return run_split(call, axes, self.mesh) if axes else run_op(call)

    def _prepare(self, item: Op) -> Prepared:
        """Pass-independent data of an op: local shapes, bytes per element, and axes of a split implementation."""
        node = item.node
        if item.signature is None:
            return [meta.sizes for meta in node.outputs], widths_of(node), {}
        layouts = zip(node.outputs, item.signature.outs, strict=True)
        shapes = [local_shape(meta.sizes, layout, self.mesh) for meta, layout in layouts]
        choices = checked_choices(self.graph, node, item.signature, self.mesh.ndim)
        return shapes, widths_of(node), implemented_axes(choices)
