"""One chunk of the model on one rank: its program, parameter gathers, gradient buckets and passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from autosbp.costmodel.pipeline_program import PipelineChunk
from autosbp.executor.gradient_buckets import GradientBuckets
from autosbp.executor.loss_denominators import BatchDenominators
from autosbp.executor.loss_scaling import scaled_loss
from autosbp.executor.lowering import lower
from autosbp.executor.parameter_gathers import ParameterGathers
from autosbp.executor.runtime import Runtime
from autosbp.graph.evaluation import evaluation_graph
from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.graph.to_fx import torch_dtype
from autosbp.plan.plan import Strategy
from autosbp.program.deferred_wgrad import gradients_return_at_end
from autosbp.program.microbatch_loss import LossScaling
from autosbp.program.program import output_layout
from autosbp.sbp.layout import local_shape


@dataclass(frozen=True, slots=True)
class StageTensor:
    """One rank's part of a value sent between stages; ``gradient`` says whether a gradient comes back."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    gradient: bool


class ChunkProgram:
    """The passes of one chunk.

    Args:
        chunk: one of the strategy's chunks.
        parameters: this rank's parts of the stage's parameters, by name; flat messages replace them by views.
        runtime: the stage's.
        parts: how microbatches relate to the whole batch.

    Call ``load`` with the batch, then passes one at a time in any order that a schedule allows, and ``finish`` last. In
    the last chunk, ``losses`` then holds the losses by microbatch.
    """

    def __init__(
        self,
        chunk: PipelineChunk,
        strategy: Strategy,
        parameters: dict[str, torch.Tensor],
        runtime: Runtime,
        parts: LossScaling,
    ) -> None:
        assert strategy.pipeline is not None
        self.index, self.graph, self.strategy, self.runtime = chunk.index, chunk.graph, strategy, runtime
        self._chunk, self.flow = chunk, chunk.flow
        self.parameters = parameters
        self.defers = strategy.pipeline.schedule.splits_backward
        self.scale = parts.scale
        self.denominators = BatchDenominators(
            chunk.graph, parts.denominators, strategy.micro_batch, strategy.num_micro, runtime.device
        )
        here = {node.name for node in chunk.graph.nodes}
        self._lowering: dict[str, Any] = {
            "denominators": self.denominators.names,
            "statistics": here.intersection(runtime.running_statistics),
        }
        program = lower(chunk.graph, strategy, runtime.rank, chunk.flow, defers=self.defers, **self._lowering)
        self.program = program.to(runtime.device)
        self.gathers = ParameterGathers(
            chunk.flow,
            strategy.gather == "use",
            parameters,
            runtime,
            lambda name: self.buckets.schedule.mark_ready(name),
            late=gradients_return_at_end(strategy),
        )
        self.buckets = GradientBuckets(chunk.flow, parameters, runtime)
        self.receives = tuple(stage_tensor(chunk.graph, strategy, ref) for ref in chunk.graph.received_refs)
        self.sends = tuple(stage_tensor(chunk.graph, strategy, ref) for ref in chunk.graph.results)
        self.loss_dtype = torch_dtype(chunk.graph.meta(chunk.graph.loss).dtype)
        self.losses: dict[int, torch.Tensor] = {}
        self._evaluation_program: Any = None
        self._batch: Mapping[str, torch.Tensor] = {}
        self._deferred: dict[int, list[Callable[[], None]]] = {}

    @property
    def is_last(self) -> bool:
        return not self.graph.results

    def load(self, batch: Mapping[str, torch.Tensor]) -> None:
        """Set the whole batch of the next step."""
        self._batch = batch
        self.runtime.denominators |= self.denominators.of(batch)
        self.losses.clear()

    def forward(
        self, micro: int, received: tuple[torch.Tensor, ...], *, evaluation: bool = False
    ) -> tuple[torch.Tensor, ...]:
        """Values that the chunk sends on for one microbatch, contiguous; or its loss, scaled.

        ``evaluation``: without dropout."""
        size, count = self.strategy.micro_batch, self.strategy.num_micro
        inputs = [self._batch[leaf.name][micro * size : (micro + 1) * size] for leaf in self.graph.inputs]
        runtime = self.runtime
        runtime.micro, runtime.gathers = micro, self.gathers
        runtime.deferred_wgrads = self._deferred[micro] = []
        self.gathers.begin(micro, count)
        with self.gathers.saved_tensors_context():
            stored = [self.parameters[leaf.name] for leaf in self.graph.parameters]
            program = self._evaluation() if evaluation else self.program
            out = program(*stored, *inputs, *received)
        if self.is_last:
            self.losses[micro] = out.detach()
            return (scaled_loss(out, self.scale * runtime.loss_scale),)
        pairs = zip(out, self.sends, strict=True)
        return tuple((value if sent.gradient else value.detach()).contiguous() for value, sent in pairs)

    def _evaluation(self) -> Any:
        """The program without dropout, lowered when first asked for."""
        if self._evaluation_program is None:
            chunk = replace(self._chunk, graph=evaluation_graph(self.graph, self._lowering["statistics"]))
            lowered = lower(chunk.graph, self.strategy, self.runtime.rank, chunk.flow, **self._lowering)
            self._evaluation_program = lowered.to(self.runtime.device)
        return self._evaluation_program

    def before_backward(self, micro: int) -> None:
        """Prepare for the backward of a microbatch."""
        count = self.strategy.num_micro
        self.gathers.begin(micro, count)
        # Deferred weight gradients are missing when the last backward pass ends.
        self.buckets.schedule.open = micro == count - 1 and not self.defers

    def after_backward(self) -> None:
        """Finish a backward pass."""
        self.gathers.end()
        self.buckets.schedule.open = False

    def weights(self, micro: int) -> None:
        """Compute the deferred weight gradients of a microbatch.

        Autograd's records, and with them the list, may outlive the pass: emptying it frees the inputs of each gradient.
        """
        calls = self._deferred.pop(micro)
        calls.reverse()
        while calls:
            calls.pop()()

    def finish(self) -> None:
        """After all passes: complete the gradients in this stage, except those of parameters shared between stages."""
        self.gathers.finish()
        self.buckets.finish()
        self._deferred.clear()


def stage_tensor(graph: LogicalGraph, strategy: Strategy, ref: Ref) -> StageTensor:
    """A value in the layout that its op produces."""
    meta = graph.meta(ref)
    shape = local_shape(meta.sizes, output_layout(strategy, ref), strategy.mesh)
    return StageTensor(ref.name, shape, torch_dtype(meta.dtype), graph.has_gradient(ref))
