"""One message of parameters: how stored parts become copies for use, and gradients of the copies gradients of the parts.

A flat message packs the stored parts of its parameters behind each other: they *are* one buffer, which one all-gather
sends without a copy. What arrives is [ranks, parts]; each parameter is cut out of it along the dim that it is split on.
Gradients go the same way back: each is copied once, into its place in [ranks, parts], and the reduce-scatter leaves this
rank's parts behind each other. A parameter that travels alone, split on its first dim of more than one, is not copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Protocol

import torch

from autosbp.executor import _dist, ops
from autosbp.executor.runtime import Runtime
from autosbp.sbp.gathers import Gather
from autosbp.sbp.program import Box


class Message(Protocol):
    """Gradients may be added any number of times before ``send_back``, and messages sent back any number of times."""

    stored: list[torch.Tensor]
    """The parts that this rank stores and trains, in the order of the boxes."""

    def send(self) -> None:
        """Begin to bring the copies."""

    def receive(self) -> list[torch.Tensor]:
        """The copies, in the order of the boxes."""

    def add_gradient(self, at: int, gradient: torch.Tensor) -> None:
        """Take a gradient of copy ``at``."""

    def send_back(self) -> None:
        """Begin to bring the gradients to the ranks that store the parts."""

    def settle(self) -> None:
        """Wait for what was sent back last."""

    def take(self) -> list[torch.Tensor]:
        """The gradients of the parts since the last call, settled; none where nothing was sent back."""


def make_message(gather: Gather, parts: Sequence[torch.Tensor], runtime: Runtime) -> Message:
    """The message of ``gather``; ``parts`` are what this rank stores, which a flat message moves into its buffer."""
    return FlatMessage(gather, parts, runtime) if gather.flat else PathMessage(gather.boxes[0], parts[0], runtime)


class FlatMessage:
    """Several parameters, one all-gather and one reduce-scatter."""

    def __init__(self, gather: Gather, parts: Sequence[torch.Tensor], runtime: Runtime) -> None:
        self.runtime, self.axes = runtime, gather.step.axes
        self.dims = [box.steps[0].src_dim for box in gather.boxes]
        self.shapes = [part.shape for part in parts]
        self.sizes = [part.numel() for part in parts]
        self.ranks = runtime.mesh.group_size(self.axes)
        self.alone = len(parts) == 1 and prod(parts[0].shape[: self.dims[0]]) == 1
        self._flat = torch.cat([part.detach().reshape(-1) for part in parts])
        self.stored = [
            piece.view(shape).requires_grad_()
            for piece, shape in zip(torch.split(self._flat, self.sizes), self.shapes, strict=True)
        ]
        self._whole: torch.Tensor | None = None
        self._gradient: torch.Tensor | None = None
        self._places: list[torch.Tensor] = []  # of each parameter in it, cut once for all
        self._filled = [False] * len(parts)
        self._total: torch.Tensor | None = None
        self._work: Any = None
        self._back: tuple[Any, torch.Tensor, torch.Tensor] | None = None

    def send(self) -> None:
        group, ranks = self.runtime.group(self.axes)
        self._whole = self._flat.new_empty(self.ranks * self._flat.numel())
        self.runtime.record("all_gather", self._whole, ranks)
        self._work = _dist.start_all_gather(self._whole, self._flat, group)

    def receive(self) -> list[torch.Tensor]:
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
        """[ranks, *part] with the ranks' parts behind each other along ``dim``; no copy where memory is so already."""
        joined = parts.movedim(0, dim).flatten(dim, dim + 1)
        # A view with gaps, of dims of size 1, would hold the whole message for as long as the copy is used.
        return joined.contiguous()

    def add_gradient(self, at: int, gradient: torch.Tensor) -> None:
        filled, self._filled[at] = self._filled[at], True
        if self.alone:
            # Never in place: autograd may hand this tensor to others too.
            flat = gradient.reshape(-1)
            self._gradient = self._gradient + flat if filled and self._gradient is not None else flat
            return
        if self._gradient is None:
            self._gradient = self._flat.new_empty(self.ranks * self._flat.numel())
            self._places = self._parts(self._gradient)
        place, dim = self._places[at], self.dims[at]
        source = torch.unflatten(gradient, dim, (self.ranks, -1)).movedim(dim, 0)
        if filled:
            place.add_(source)
        else:
            place.copy_(source)

    def send_back(self) -> None:
        self.settle()
        group, ranks = self.runtime.group(self.axes)
        if self._gradient is None:
            self._gradient = self._flat.new_zeros(self.ranks * self._flat.numel())
        elif not all(self._filled):
            for place, filled in zip(self._places, self._filled, strict=True):
                if not filled:
                    place.zero_()
        result = torch.empty_like(self._flat)
        self.runtime.record("reduce_scatter", self._gradient, ranks)
        self._back = _dist.start_reduce_scatter(result, self._gradient, group), result, self._gradient
        self._gradient, self._places, self._filled = None, [], [False] * len(self.sizes)

    def settle(self) -> None:
        if self._back is None:
            return
        work, result, _ = self._back
        work.wait()
        self._total = result if self._total is None else self._total.add_(result)
        self._back = None

    def take(self) -> list[torch.Tensor]:
        self.settle()
        total, self._total = self._total, None
        if total is None:
            return []
        return [piece.view(shape) for piece, shape in zip(torch.split(total, self.sizes), self.shapes, strict=True)]


class PathMessage:
    """One parameter by the steps of its path, each finished before the next."""

    def __init__(self, box: Box, part: torch.Tensor, runtime: Runtime) -> None:
        self.box, self.runtime = box, runtime
        self.stored = [part]
        self._copy: torch.Tensor | None = None
        self._gradient: torch.Tensor | None = None
        self._total: torch.Tensor | None = None
        self._shape = part.shape

    def send(self) -> None:
        value = self.stored[0].detach()
        for step in self.box.steps:
            value = ops.step_ahead(value, step, self.runtime)
        self._copy, self._shape = value, value.shape

    def receive(self) -> list[torch.Tensor]:
        assert self._copy is not None
        copy, self._copy = self._copy, None
        return [copy]

    def add_gradient(self, at: int, gradient: torch.Tensor) -> None:  # noqa: ARG002 - there is one
        self._gradient = gradient if self._gradient is None else self._gradient + gradient

    def send_back(self) -> None:
        value = self.stored[0].new_zeros(self._shape) if self._gradient is None else self._gradient
        for step in reversed(self.box.steps):
            value = ops._act(value, step.backward_axes, step.backward, step.dst_dim, step.src_dim, self.runtime)
        self._total = value.clone() if self._total is None else self._total + value
        self._gradient = None

    def settle(self) -> None:
        """Nothing is under way."""

    def take(self) -> list[torch.Tensor]:
        total, self._total = self._total, None
        return [] if total is None else [total]
