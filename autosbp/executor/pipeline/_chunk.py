"""One chunk of the model on one rank: its program, its parameters' gathers and buckets, and its passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from autosbp.costmodel.stages import Chunk
from autosbp.executor.gathering import ParameterGathers
from autosbp.executor.lowering import lower
from autosbp.executor.reduction import GradientBuckets
from autosbp.executor.runtime import Runtime
from autosbp.executor.whole_batch import Denominators
from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.graph.materialise import dtype_of
from autosbp.plan import Strategy
from autosbp.sbp.deferral import returns_late
from autosbp.sbp.placement import local_shape
from autosbp.sbp.program import made_layout
from autosbp.sbp.whole_batch import Parts


@dataclass(frozen=True, slots=True)
class Crossing:
    """One rank's part of a value that crosses a cut; ``gradient`` says whether one comes back."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    gradient: bool


class ChunkProgram:
    """The passes of one chunk.

    Args:
        chunk: of the strategy's.
        parameters: this rank's parts of the stage's, by name; flat messages replace them by views.
        runtime: of the stage.
        parts: what microbatches are to the whole batch.

    The step gives it a batch (``load``), passes are called in any order that a schedule may have, one at a time, and
    ``finish`` comes last. ``losses`` are then the last chunk's, by microbatch.
    """

    def __init__(
        self,
        chunk: Chunk,
        strategy: Strategy,
        parameters: dict[str, torch.Tensor],
        runtime: Runtime,
        parts: Parts,
    ) -> None:
        assert strategy.pipeline is not None
        self.index, self.graph, self.strategy, self.runtime = chunk.index, chunk.graph, strategy, runtime
        self.parameters = parameters
        self.defers = strategy.pipeline.schedule.splits_backward
        self.scale = parts.scale
        self.denominators = Denominators(
            chunk.graph, parts.denominators, strategy.micro_batch, strategy.num_micro, runtime.device
        )
        divided = self.denominators.names
        program = lower(chunk.graph, strategy, runtime.rank, chunk.flow, defers=self.defers, denominators=divided)
        self.program = program.to(runtime.device)
        self.gathers = ParameterGathers(
            chunk.flow,
            strategy.gather == "use",
            parameters,
            runtime,
            lambda name: self.buckets.arrived(name),
            late=returns_late(strategy),
        )
        self.buckets = GradientBuckets(chunk.flow, parameters, runtime)
        self.receives = tuple(crossing(chunk.graph, strategy, ref) for ref in chunk.graph.received)
        self.sends = tuple(crossing(chunk.graph, strategy, ref) for ref in chunk.graph.results)
        self.loss_dtype = dtype_of(chunk.graph.meta(chunk.graph.loss).dtype)
        self.losses: dict[int, torch.Tensor] = {}
        self._batch: Mapping[str, torch.Tensor] = {}
        self._deferred: dict[int, list[Callable[[], None]]] = {}

    @property
    def is_last(self) -> bool:
        return not self.graph.results

    def load(self, batch: Mapping[str, torch.Tensor]) -> None:
        """The whole batch of the next step."""
        self._batch = batch
        self.runtime.denominators |= self.denominators.of(batch)
        self.losses.clear()

    def forward(self, micro: int, received: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """What the chunk sends on of one microbatch, contiguous; or its loss, as it counts in the step."""
        size, count = self.strategy.micro_batch, self.strategy.num_micro
        inputs = [self._batch[leaf.name][micro * size : (micro + 1) * size] for leaf in self.graph.inputs]
        runtime = self.runtime
        runtime.micro, runtime.gathers = micro, self.gathers
        runtime.deferred = self._deferred[micro] = []
        self.gathers.begin(micro, count)
        with self.gathers.saving():
            stored = [self.parameters[leaf.name] for leaf in self.graph.parameters]
            out = self.program(*stored, *inputs, *received)
        if self.is_last:
            self.losses[micro] = out.detach()
            return (out * self.scale if self.scale != 1.0 else out,)
        pairs = zip(out, self.sends, strict=True)
        return tuple((value if sent.gradient else value.detach()).contiguous() for value, sent in pairs)

    def before_backward(self, micro: int) -> None:
        """The backward of a microbatch follows."""
        count = self.strategy.num_micro
        self.gathers.begin(micro, count)
        # Gradients that are made later have not come when the last backward pass is over.
        self.buckets.open = micro == count - 1 and not self.defers

    def after_backward(self) -> None:
        """It is done."""
        self.gathers.end()
        self.buckets.open = False

    def weights(self, micro: int) -> None:
        """The gradients that the backward of a microbatch left. What autograd recorded may outlive the pass, and with it the
        list: it is emptied, so that what each gradient needs goes with it."""
        calls = self._deferred.pop(micro)
        calls.reverse()
        while calls:
            calls.pop()()

    def finish(self) -> None:
        """After all passes: gradients are whole in this stage, but for those of shared parameters."""
        self.gathers.finish()
        self.buckets.finish()
        self._deferred.clear()


def crossing(graph: LogicalGraph, strategy: Strategy, ref: Ref) -> Crossing:
    """A value in the layout in which its op leaves it."""
    meta = graph.meta(ref)
    shape = local_shape(meta.sizes, made_layout(strategy, ref), strategy.mesh)
    return Crossing(ref.name, shape, dtype_of(meta.dtype), graph.has_gradient(ref))
