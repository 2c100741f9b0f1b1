"""Flat buffers: stored parameter parts become copies for use in one message, and gradients return in one.

A flat message packs the stored parts of its parameters one after another: they are views of one buffer, which one
all-gather sends without a copy. The received buffer is [ranks, parts]; each parameter is cut out of it along its split
dim. Gradients return the same way: each is copied once, to its place in [ranks, parts], and the reduce-scatter leaves
this rank's parts one after another. A parameter that travels alone, split on its first dim of size above 1, is not
copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Protocol

import torch

from autosbp.executor import _torch_distributed, comm_ops
from autosbp.executor.parameter_shards import gradient_dtype
from autosbp.executor.runtime import Runtime
from autosbp.executor.synchronizers._compressors import HalfPrecision
from autosbp.program.gather_schedule import GatherMessage
from autosbp.program.parameter_gathers import Gather
from autosbp.program.program import Boxing


class ParameterMessage(GatherMessage[torch.Tensor], Protocol):
    """Message of one gather between ranks."""

    stored: list[torch.Tensor]
    """The parts that this rank stores and trains, in the order of the boxes."""


def make_message(gather: Gather, parts: Sequence[torch.Tensor], runtime: Runtime) -> ParameterMessage:
    """The message of ``gather``; ``parts`` are what this rank stores, which a flat message moves into its buffer."""
    return FlatMessage(gather, parts, runtime) if gather.flat else PathMessage(gather.boxes[0], parts[0], runtime)


class FlatMessage:
    """Several parameters in one all-gather and one reduce-scatter."""

    def __init__(self, gather: Gather, parts: Sequence[torch.Tensor], runtime: Runtime) -> None:
        self.runtime, self.axes = runtime, gather.step.axes
        self.dims = [box.steps[0].src_dim for box in gather.boxes]
        self.shapes = [part.shape for part in parts]
        self.sizes = [part.numel() for part in parts]
        self.ranks = runtime.mesh.group_size(self.axes)
        self.alone = len(parts) == 1 and prod(parts[0].shape[: self.dims[0]]) == 1
        self._flat = torch.cat([part.detach().reshape(-1) for part in parts])
        self._dtype = gradient_dtype(parts[0])
        self._encoder = None if gather.compressor is None else HalfPrecision(gather.compressor)
        pieces = zip(torch.split(self._flat, self.sizes), self.shapes, strict=True)
        self.stored = [piece.view(shape).requires_grad_() for piece, shape in pieces]
        for each in self.stored:
            each.grad_dtype = self._dtype
        self._whole: torch.Tensor | None = None
        self._gradient: torch.Tensor | None = None
        self._places: list[torch.Tensor] = []  # views of each parameter in the gradient buffer
        self._filled = [False] * len(parts)
        self._total: torch.Tensor | None = None
        self._work: Any = None
        self._back: tuple[Any, torch.Tensor, torch.Tensor] | None = None

    def start_gather(self) -> None:
        group, ranks = self.runtime.group(self.axes)
        self._whole = self._flat.new_empty(self.ranks * self._flat.numel())
        self.runtime.record("all_gather", self._whole, ranks)
        self._work = _torch_distributed.start_all_gather(self._whole, self._flat, group)

    def wait_copies(self) -> list[torch.Tensor]:
        assert self._whole is not None
        self._work.wait()
        copies = [self._joined(part, dim) for part, dim in zip(self._parts(self._whole), self.dims, strict=True)]
        self._whole = self._work = None
        return copies

    def _parts(self, whole: torch.Tensor) -> list[torch.Tensor]:
        """Views [ranks, *part] of each parameter in a buffer [ranks, parts]."""
        pieces = torch.split(whole.view(self.ranks, -1), self.sizes, 1)
        return [torch.unflatten(piece, 1, shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    @staticmethod
    def _joined(parts: torch.Tensor, dim: int) -> torch.Tensor:
        """Concatenate [ranks, *part] along ``dim``; no copy if memory has this order already."""
        joined = parts.movedim(0, dim).flatten(dim, dim + 1)
        # A non-contiguous view (dims of size 1) would keep the whole message alive as long as the copy.
        return joined.contiguous()

    def add_gradient(self, at: int, gradient: torch.Tensor) -> None:
        filled, self._filled[at] = self._filled[at], True
        if self.alone:
            # Never in place: autograd may pass this tensor to others too.
            flat = gradient.reshape(-1).to(self._dtype)
            self._gradient = self._gradient + flat if filled and self._gradient is not None else flat
            return
        if self._gradient is None:
            self._gradient = self._flat.new_empty(self.ranks * self._flat.numel(), dtype=self._dtype)
            self._places = self._parts(self._gradient)
        place, dim = self._places[at], self.dims[at]
        source = torch.unflatten(gradient, dim, (self.ranks, -1)).movedim(dim, 0)
        if filled:
            place.add_(source)
        else:
            place.copy_(source)

    def start_reduce(self) -> None:
        self.wait_gradients()
        group, ranks = self.runtime.group(self.axes)
        if self._gradient is None:
            self._gradient = self._flat.new_zeros(self.ranks * self._flat.numel(), dtype=self._dtype)
        elif not all(self._filled):
            for place, filled in zip(self._places, self._filled, strict=True):
                if not filled:
                    place.zero_()
        sent = self._gradient if self._encoder is None else self._encoder.encode(self._gradient.clone())
        result = torch.empty_like(self._flat, dtype=sent.dtype)
        self.runtime.record("reduce_scatter", sent, ranks)
        self._back = _torch_distributed.start_reduce_scatter(result, sent, group), result, sent
        self._gradient, self._places, self._filled = None, [], [False] * len(self.sizes)

    def wait_gradients(self) -> None:
        if self._back is None:
            return
        work, result, _ = self._back
        work.wait()
        result = result.to(self._dtype)
        self._total = result if self._total is None else self._total.add_(result)
        self._back = None

    def take(self) -> list[torch.Tensor]:
        self.wait_gradients()
        total, self._total = self._total, None
        if total is None:
            return []
        return [piece.view(shape) for piece, shape in zip(torch.split(total, self.sizes), self.shapes, strict=True)]


class PathMessage:
    """One parameter by the steps of its path, each finished before the next."""

    def __init__(self, box: Boxing, part: torch.Tensor, runtime: Runtime) -> None:
        self.box, self.runtime = box, runtime
        self.stored = [part]
        self._copy: torch.Tensor | None = None
        self._gradient: torch.Tensor | None = None
        self._total: torch.Tensor | None = None
        self._shape, self._dtype = part.shape, gradient_dtype(part)

    def start_gather(self) -> None:
        value = self.stored[0].detach()
        for step in self.box.steps:
            value = comm_ops.run_step(value, step, self.runtime)
        self._copy, self._shape = value, value.shape

    def wait_copies(self) -> list[torch.Tensor]:
        assert self._copy is not None
        copy, self._copy = self._copy, None
        return [copy]

    def add_gradient(self, at: int, gradient: torch.Tensor) -> None:  # noqa: ARG002 - there is one
        gradient = gradient.to(self._dtype)
        self._gradient = gradient if self._gradient is None else self._gradient + gradient

    def start_reduce(self) -> None:
        value = self.stored[0].new_zeros(self._shape, dtype=self._dtype) if self._gradient is None else self._gradient
        for step in reversed(self.box.steps):
            value = comm_ops.run_step_backward(value, step, self.runtime)
        self._total = value.clone() if self._total is None else self._total + value
        self._gradient = None

    def wait_gradients(self) -> None:
        """Nothing to wait for: all steps have finished."""

    def take(self) -> list[torch.Tensor]:
        total, self._total = self._total, None
        return [] if total is None else [total]
