"""Gradients of B parameters: flat buckets, reduced as soon as they are complete, while backward goes on.

As DistributedDataParallel does (Li et al. 2020, section 3.2.3): a gradient is copied once, into its place in a flat
buffer, and stays a view of it; so what the optimizer reads is what was reduced. A bucket of one parameter has no buffer:
its gradient is reduced where autograd left it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from weakref import WeakMethod

import torch

from autosbp.executor import _dist
from autosbp.executor.runtime import Runtime
from autosbp.sbp.buckets import AT_END
from autosbp.sbp.parameters import ParameterFlow


class GradientBuckets:
    """The buckets of one rank, in the order in which every rank issues them.

    Args:
        flow: of the strategy.
        parameters: this rank's part of each, by name.
        runtime: whose groups reduce, and which records what is issued.

    ``open`` is set for the backward of the last microbatch: in it a bucket is issued when the last of its gradients has
    come from all its readers. ``finish`` follows. Not safe across threads.
    """

    def __init__(self, flow: ParameterFlow, parameters: Mapping[str, torch.Tensor], runtime: Runtime) -> None:
        self.runtime, self.open = runtime, False
        self._buckets = [
            (bucket.axes, FlatGradients([parameters[name] for name in bucket.names])) for bucket in flow.buckets
        ]
        self._home = {name: at for at, bucket in enumerate(flow.buckets) for name in bucket.names}
        # What comes at the end is not counted: its bucket is never complete before.
        self._expected = [
            sum(flow.sources[name] for name in bucket.names) + (bucket.ready == AT_END) for bucket in flow.buckets
        ]
        self._missing = list(self._expected)
        self._next = 0
        self._pending: list[Any] = []
        for name in self._home:
            parameter: Any = parameters[name]
            # Weakly: what autograd holds no collector of garbage sees, and this object holds the parameters.
            parameter.register_post_accumulate_grad_hook(partial(_accumulated, WeakMethod(self._accumulated), name))

    def _accumulated(self, name: str, _: torch.Tensor) -> None:
        """Autograd has added up what the program sends to a parameter."""
        if self.open:
            self.arrived(name)

    def arrived(self, name: str) -> None:
        """One source of this parameter's gradient is done; issues the buckets that are complete, in order."""
        at = self._home.get(name)
        if at is None:
            return
        self._missing[at] -= 1
        while self._next < len(self._buckets) and self._missing[self._next] == 0:
            self._issue()

    def finish(self) -> None:
        """Issue what is left, and wait for all: then every gradient is whole."""
        while self._next < len(self._buckets):
            self._issue()
        for work in self._pending:
            work.wait()
        self._pending.clear()
        self._missing = list(self._expected)
        self._next = 0

    def _issue(self) -> None:
        axes, gradients = self._buckets[self._next]
        self._next += 1
        flat = gradients.fill()
        group, ranks = self.runtime.group(axes)
        self.runtime.record("all_reduce", flat, ranks)
        self._pending.append(_dist.start_all_reduce(flat, group))


def _accumulated(tell: WeakMethod[Callable[[str, torch.Tensor], None]], name: str, parameter: torch.Tensor) -> None:
    """Tell the buckets, while they live."""
    told = tell()
    if told is not None:
        told(name, parameter)


class FlatGradients:
    """One message of gradients: a buffer and each gradient's view of it."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.parameters = parameters
        sizes = [parameter.numel() for parameter in parameters]
        self.buffer = parameters[0].new_empty(sum(sizes) if len(parameters) > 1 else 0)
        parts = torch.split(self.buffer, sizes) if len(parameters) > 1 else []
        self.views = [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=False)]

    def fill(self) -> torch.Tensor:
        """The flat message, of which the gradients are views from now on; a parameter without one sends zeros."""
        grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in self.parameters]
        if not self.views:
            self.parameters[0].grad = grads[0].contiguous()
            return self.parameters[0].grad
        torch._foreach_copy_(self.views, grads)
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view
        return self.buffer
