"""``MemoryTrace``: bytes of all live tensors during a step.

Tracks storages, not tensors: views count once, and a storage counts until its last holder is gone, autograd included.
Memory that kernels allocate and free internally is not seen, nor is the allocator's rounding.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class MemoryTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context. ``live`` is the bytes alive now, ``peak`` the maximum so far; ``peak_op`` ran last before the peak.

    Args:
        known: tensors created before, which count too.

    For one thread, and backward on CPU, which runs in the caller's thread. Under a dispatch mode, autograd accumulates
    the gradients of a value with several readers out of place, which briefly takes one more tensor.
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self.peak_op = ""
        self._seen: set[int] = set()
        for tensor in known:
            self._follow(tensor, "")

    def _follow(self, tensor: torch.Tensor, op: str) -> None:
        storage = tensor.untyped_storage()
        address, size = storage._cdata, storage.nbytes()
        if address in self._seen:
            return
        self._seen.add(address)
        self.live += size
        if self.live > self.peak:
            self.peak, self.peak_op = self.live, op
        weakref.finalize(storage, self._drop, address, size)

    def _drop(self, address: int, size: int) -> None:
        self._seen.discard(address)
        self.live -= size

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in tree_iter(out):
            if isinstance(value, torch.Tensor):
                self._follow(value, str(func))
        return out
