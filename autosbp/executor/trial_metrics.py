"""Memory metrics of a trial: peak bytes of tensors in a step, and bytes that autograd saves."""

from __future__ import annotations

import statistics
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from autosbp.executor.memory_trace import MemoryTrace

if TYPE_CHECKING:
    from autosbp.executor.parameter_gathers import ParameterGathers
    from autosbp.executor.pipeline import PipelineTrainer
    from autosbp.executor.training import Trainer


class SavedBytes:
    """Context that counts the tensors autograd saves for backward: ``bytes`` is the peak, each storage once.

    Args:
        known: tensors from before, which do not count.
        gathers: the trainer's; they save tensors in their own way if parameters are gathered for each use.
    """

    def __init__(self, known: Iterable[torch.Tensor], gathers: Sequence[ParameterGathers] = ()) -> None:
        self.bytes = self._now = 0
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self._holders: dict[int, int] = {}
        self._gathers = gathers
        self._hooks: Any = None

    def _pack(self, tensor: torch.Tensor) -> _SavedTensor | torch.Tensor:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if address in self._known:
            return tensor
        self._holders[address] = self._holders.get(address, 0) + 1
        if self._holders[address] == 1:
            self._now += size
            self.bytes = max(self.bytes, self._now)
        kept = _SavedTensor(tensor)
        weakref.finalize(kept, self._drop, address, size)
        return kept

    def _drop(self, address: int, size: int) -> None:
        self._holders[address] -= 1
        if not self._holders[address]:
            self._now -= size

    def __enter__(self) -> SavedBytes:
        for gathers in self._gathers:
            gathers.keep, gathers.kept = self._pack, _unpack
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)
        self._hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.__exit__(kind, error, trace)
        for gathers in self._gathers:
            gathers.keep = gathers.kept = _unpack


@dataclass(frozen=True)
class _SavedTensor:
    """Lives as long as autograd keeps ``tensor``."""

    tensor: torch.Tensor


def _unpack(kept: _SavedTensor | torch.Tensor) -> torch.Tensor:
    return kept.tensor if isinstance(kept, _SavedTensor) else kept


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Peak bytes of tensors in one step, and peak bytes saved by autograd."""

    peak: int
    saved: int


def step_memory(trainer: Trainer | PipelineTrainer, batch: Mapping[str, torch.Tensor]) -> StepMemory:
    """Train two steps and measure their memory: one for saved tensors, one for all tensors.

    The latter uses ``MemoryTrace``, or the allocator's own count on a GPU. A step must have run before, so that the
    optimizer has its state.
    """
    known = [*trainer.locals.values(), *_batch_and_constants(trainer, batch)]
    with SavedBytes(known, [part.gathers for part in trainer.chunks]) as saved:
        trainer.step(batch)
    if trainer.runtime.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        trainer.step(batch)
        return StepMemory(torch.cuda.max_memory_allocated(), saved.bytes)
    with MemoryTrace(resident_tensors(trainer, batch)) as trace:
        trainer.step(batch)
    return StepMemory(trace.peak, saved.bytes)


def resident_tensors(trainer: Trainer | PipelineTrainer, batch: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """All tensors between two steps: parameters, gradients, optimizer state, constants and the batch."""
    gradients = [local.grad for local in trainer.locals.values() if local.grad is not None]
    return [*trainer.locals.values(), *gradients, *_states(trainer), *_batch_and_constants(trainer, batch)]


def _batch_and_constants(trainer: Trainer | PipelineTrainer, batch: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Constants, and the batch tensors that the programs read."""
    read = {leaf.name for part in trainer.chunks for leaf in part.graph.inputs}
    constants = [constant for part in trainer.chunks for constant in part.program.buffers()]
    return [*constants, *(tensor for name, tensor in batch.items() if name in read)]


def _states(trainer: Trainer | PipelineTrainer) -> list[torch.Tensor]:
    """The optimizer's state tensors, without its counters."""
    return [
        value
        for parameter in trainer.locals.values()
        for value in trainer.optimizer.state.get(parameter, {}).values()
        if isinstance(value, torch.Tensor) and value.dim() == parameter.dim()
    ]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def relative_differences(losses: Sequence[float], wanted: Sequence[float]) -> list[float]:
    """Relative differences of losses from those wanted, step by step; of the first steps, if one has more."""
    return [abs(got - want) / max(abs(want), 1e-12) for got, want in zip(losses, wanted, strict=False)]
