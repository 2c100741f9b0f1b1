"""What a trial measures besides time: bytes of training state, and bytes that autograd keeps for the backward pass."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from autosbp.executor.training import Trainer


class SavedBytes:
    """Within, counts the bytes of the tensors that autograd saves, each storage once, those in ``known`` left out."""

    def __init__(self, known: Iterable[torch.Tensor]) -> None:
        self.bytes = 0
        self._seen = {tensor.untyped_storage().data_ptr() for tensor in known}
        self._kept: list[torch.Tensor] = []
        self._hooks: Any = None

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self._kept.append(tensor)  # alive until the end, so that no address is used twice
            self.bytes += storage.nbytes()
        return tensor

    def __enter__(self) -> SavedBytes:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.__exit__(kind, error, trace)
        self._kept.clear()


def state_bytes(trainer: Trainer) -> int:
    """Parameters, gradients and optimizer state of one rank, as allocated."""
    total = 0
    for parameter in trainer.locals.values():
        total += parameter.nbytes * (2 if parameter.grad is not None else 1)
        for value in trainer.optimizer.state.get(parameter, {}).values():
            if isinstance(value, torch.Tensor) and value.dim() == parameter.dim():
                total += value.nbytes
    return total


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
