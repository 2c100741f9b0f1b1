"""Gradient buckets: gradients of B parameters in flat buffers, reduced as soon as complete, during backward.

As in DistributedDataParallel (Li et al. 2020, section 3.2.3), a gradient is copied once, to its place in a flat buffer,
and stays a view of it, so the optimizer reads what was reduced. A bucket of one parameter has no buffer: its gradient
is reduced in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from weakref import WeakMethod

import torch

from autosbp.executor import _torch_distributed
from autosbp.executor.parameter_shards import gradient_dtype
from autosbp.executor.runtime import Runtime
from autosbp.program.bucket_schedule import BucketSchedule
from autosbp.program.parameter_flow import ParameterFlow


class GradientBuckets:
    """The buckets of one rank, in the order in which every rank issues them.

    Args:
        flow: the strategy's parameter flow.
        parameters: this rank's part of each, by name.
        runtime: provides the groups and records the collectives.

    Set ``schedule.open`` for the backward of the last microbatch, and call ``finish`` afterwards. Not thread-safe.
    """

    def __init__(self, flow: ParameterFlow, parameters: Mapping[str, torch.Tensor], runtime: Runtime) -> None:
        self.runtime = runtime
        self.schedule = BucketSchedule(flow, self._issue)
        self._buckets = [
            (bucket.axes, FlatGradients([parameters[name] for name in bucket.names])) for bucket in flow.buckets
        ]
        self._pending: list[Any] = []
        for name in (name for bucket in flow.buckets for name in bucket.names):
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

    def _issue(self, at: int) -> None:
        axes, gradients = self._buckets[at]
        flat = gradients.fill()
        group, ranks = self.runtime.group(axes)
        self.runtime.record("all_reduce", flat, ranks)
        self._pending.append(_torch_distributed.start_all_reduce(flat, group))


def _accumulated(tell: WeakMethod[Callable[[str, torch.Tensor], None]], name: str, parameter: torch.Tensor) -> None:
    """Call the buckets' method if they still exist."""
    told = tell()
    if told is not None:
        told(name, parameter)


class FlatGradients:
    """One message of gradients: a buffer and each gradient's view of it."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.parameters = parameters
        sizes = [parameter.numel() for parameter in parameters]
        self.dtype = gradient_dtype(parameters[0])
        self.buffer = parameters[0].new_empty(sum(sizes) if len(parameters) > 1 else 0, dtype=self.dtype)
        parts = torch.split(self.buffer, sizes) if len(parameters) > 1 else []
        self.views = [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=False)]

    def fill(self) -> torch.Tensor:
        """Copy gradients into the flat message and make them views of it; a missing gradient sends zeros."""
        grads = [
            torch.zeros_like(each, dtype=self.dtype) if each.grad is None else each.grad for each in self.parameters
        ]
        if not self.views:
            self.parameters[0].grad = grads[0].contiguous()
            return self.parameters[0].grad
        torch._foreach_copy_(self.views, grads)
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view
        return self.buffer
