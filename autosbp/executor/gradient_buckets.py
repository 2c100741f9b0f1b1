"""Gradient buckets: gradients of B parameters in flat buffers, reduced as soon as complete, during backward.

As in DistributedDataParallel (Li et al. 2020, section 3.2.3), a gradient is copied once, to its place in a flat buffer,
and stays a view of it, so the optimizer reads what was reduced. A bucket of one parameter has no buffer: its gradient
is reduced in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, Protocol
from weakref import WeakMethod

import torch

from autosbp.executor import _torch_distributed
from autosbp.executor.parameter_shards import gradient_dtype
from autosbp.executor.runtime import Runtime
from autosbp.program.bucket_schedule import BucketSchedule
from autosbp.program.gradient_buckets import Bucket
from autosbp.program.gradient_messages import Shard
from autosbp.program.parameter_flow import ParameterFlow


class BucketKernels(Protocol):
    """Synchronization of the buckets that are not one all-reduce (``executor.synchronizers``)."""

    def issue(self, at: int) -> None:
        """Begin with a bucket, whose gradients are complete."""

    def deliver(self) -> None:
        """Wait for all of them; parameters then have their gradients."""


class GradientBuckets:
    """The buckets of one rank, in the order in which every rank issues them.

    Args:
        flow: the strategy's parameter flow.
        parameters: this rank's part of each, by name.
        runtime: provides the groups and records the collectives.
        kernels: synchronize the buckets that are not one all-reduce; needed if there are any.

    Set ``schedule.open`` for the backward of the last microbatch, and call ``finish`` afterwards. Not thread-safe.
    """

    def __init__(
        self,
        flow: ParameterFlow,
        parameters: Mapping[str, torch.Tensor],
        runtime: Runtime,
        kernels: BucketKernels | None = None,
    ) -> None:
        self.runtime, self.kernels = runtime, kernels
        self.schedule = BucketSchedule(flow, self._issue)
        self._buckets = [_flat_gradients(bucket, parameters) if bucket.is_direct else None for bucket in flow.buckets]
        self._axes = [bucket.axes for bucket in flow.buckets]
        self._pending: list[Any] = []
        for name in dict.fromkeys(name for bucket in flow.buckets for name in bucket.names):
            parameter: Any = parameters[name]
            # A weak reference: the garbage collector cannot see what autograd holds, and this object holds the
            # parameters.
            parameter.register_post_accumulate_grad_hook(partial(_accumulated, WeakMethod(self._accumulated), name))

    def _accumulated(self, name: str, _: torch.Tensor) -> None:
        """Autograd hook: the program's gradients of a parameter have been accumulated."""
        if self.schedule.open:
            self.schedule.mark_ready(name)

    def finish(self) -> None:
        """Issue the remaining buckets and wait for all; then every gradient is complete."""
        self.schedule.finish()
        for work in self._pending:
            work.wait()
        self._pending.clear()
        for gradients in self._buckets:
            if gradients is not None:
                gradients.deliver()
        if self.kernels is not None:
            self.kernels.deliver()

    def _issue(self, at: int) -> None:
        gradients = self._buckets[at]
        if gradients is None:
            assert self.kernels is not None
            self.kernels.issue(at)
            return
        flat = gradients.fill()
        group, ranks = self.runtime.group(self._axes[at])
        self.runtime.record("all_reduce", flat, ranks)
        self._pending.append(_torch_distributed.start_all_reduce(flat, group))


def _flat_gradients(bucket: Bucket, parameters: Mapping[str, torch.Tensor]) -> FlatGradients:
    if bucket.message is None:
        return FlatGradients([parameters[name] for name in bucket.names])
    shards = bucket.message.shards
    return FlatGradients([parameters[shard.name] for shard in shards], shards)


def _accumulated(tell: WeakMethod[Callable[[str, torch.Tensor], None]], name: str, parameter: torch.Tensor) -> None:
    """Call the buckets' method if they still exist."""
    told = tell()
    if told is not None:
        told(name, parameter)


class FlatGradients:
    """One message of gradients: a flat buffer and each gradient's place in it.

    Args:
        parameters: of each part, in order; each contributes its whole gradient, unless ``shards`` are given.
        shards: parts of parameters, in the same order; for one that is not whole, call ``deliver`` when it is reduced.
        num_elements: of the buffer, if it is padded.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], shards: Sequence[Shard] = (), num_elements: int = 0) -> None:
        self.parameters, self.shards = list(parameters), tuple(shards)
        shapes = [shard.shape for shard in shards] or [tuple(parameter.shape) for parameter in parameters]
        sizes = [prod(shape) for shape in shapes]
        self.dtype = gradient_dtype(parameters[0])
        total = max(num_elements, sum(sizes))
        buffered = len(sizes) > 1 or total > sizes[0] or not _is_contiguous_part(parameters[0], self.shards)
        self.buffer = parameters[0].new_zeros(total if buffered else 0, dtype=self.dtype)
        parts = torch.split(self.buffer[: sum(sizes)], sizes) if buffered else ()
        self.views = [part.view(shape) for part, shape in zip(parts, shapes, strict=False)]

    def fill(self) -> torch.Tensor:
        """Copy gradients into the flat message and make them views of it; a missing gradient sends zeros."""
        grads = [self._gradient(at) for at in range(len(self.parameters))]
        if not self.views:
            if not self.shards or self.shards[0].whole:
                self.parameters[0].grad = grads[0] = grads[0].contiguous()
            return grads[0]
        torch._foreach_copy_(self.views, grads)
        for at, (parameter, view) in enumerate(zip(self.parameters, self.views, strict=True)):
            if not self.shards or self.shards[at].whole:
                parameter.grad = view
        return self.buffer

    def deliver(self) -> None:
        """Copy reduced parts of gradients back to their parameters."""
        for at, (shard, view) in enumerate(zip(self.shards, self.views, strict=False)):
            if not shard.whole:
                self._gradient(at).copy_(view)

    def _gradient(self, at: int) -> torch.Tensor:
        """The gradient of a part; that of a parameter with several parts becomes zeros if it is missing."""
        parameter = self.parameters[at]
        grad = torch.zeros_like(parameter, dtype=self.dtype) if parameter.grad is None else parameter.grad
        if not self.shards or self.shards[at].whole:
            return grad
        if not grad.is_contiguous() or parameter.grad is None:
            grad = parameter.grad = grad.contiguous()
        return part_of(grad, self.shards[at])


def part_of(tensor: torch.Tensor, shard: Shard) -> torch.Tensor:
    """View of a shard of a parameter's tensor."""
    return tensor if shard.whole else tensor.narrow(shard.dim, shard.start, shard.shape[shard.dim])


def _is_contiguous_part(parameter: torch.Tensor, shards: Sequence[Shard]) -> bool:
    """Whether the first part of contiguous gradients is contiguous, so that it needs no buffer."""
    return not shards or shards[0].whole or prod(parameter.shape[: shards[0].dim]) == 1
