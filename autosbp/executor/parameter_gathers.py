"""Parameter gathers: gather parameters whose used layout differs from the stored one, and return their gradients.

``program.gather_schedule`` decides when messages are issued and copies freed; ``executor.flat_buffers`` packs messages.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from autosbp.executor.flat_buffers import ParameterMessage, make_message
from autosbp.executor.runtime import Runtime, current
from autosbp.program.gather_schedule import GatherSchedule
from autosbp.program.parameter_flow import ParameterFlow
from autosbp.sbp.layout import format_nd_sbp


def fetch_parameter(name: str, layout: str, item: int) -> torch.Tensor:
    """In a program, as item ``item``: the copy of a parameter in its used layout."""
    copy: torch.Tensor = current().gathers.fetch(name, layout, item)
    return copy


def deferred_gradient_sink(copy: torch.Tensor) -> Callable[[torch.Tensor], None]:
    """Function that takes a gradient of a ``fetch_parameter`` copy outside of backward."""
    use: Any = copy.grad_fn
    message: ParameterMessage = use.gathers.messages[use.place]
    return partial(message.add_gradient, use.at)


def regather_before_backward(value: torch.Tensor, item: int) -> None:
    """In a program, after item ``item`` computed ``value``: gather its parameters again before its backward."""
    if value.grad_fn is not None:
        schedule = current().gathers.schedule
        value.grad_fn.register_prehook(lambda _: schedule.send_for_backward(item))


class ParameterGathers:
    """The gathers of one rank.

    Args:
        flow: the strategy's parameter flow.
        each_use: copies are freed after forward and gathered again (ZeRO-3).
        parameters: this rank's parts by name. Those that travel in flat messages are replaced by views.
        runtime: provides the groups and records the collectives.
        arrived: called with a parameter's name when the last microbatch has returned its gradient within backward.
        late: gradients return in ``finish``, since some are complete only after backward (``program.deferred_wgrad``).

    ``is_recomputing`` is True in a recomputation. ``keep`` and ``kept`` pack and unpack all other saved tensors; a trial
    replaces them to count bytes. Call ``begin`` and ``end`` around each microbatch, in which the program calls
    ``fetch_parameter``; then ``finish``. Not thread-safe.
    """

    def __init__(
        self,
        flow: ParameterFlow,
        each_use: bool,
        parameters: dict[str, torch.Tensor],
        runtime: Runtime,
        arrived: Callable[[str], None],
        *,
        late: bool = False,
    ) -> None:
        self.flow, self.each_use, self.parameters = flow, each_use, parameters
        self.messages: list[ParameterMessage] = []
        for gather in flow.gathers:
            names = [box.ref.name for box in gather.boxes]
            message = make_message(gather, [parameters[name] for name in names], runtime)
            parameters.update(zip(names, message.stored, strict=True))
            self.messages.append(message)
        self.schedule = GatherSchedule(flow, each_use, self.messages, self._contribute, arrived, late=late)
        self._places = {
            (box.ref.name, format_nd_sbp(box.dst)): (place, at)
            for place, gather in enumerate(flow.gathers)
            for at, box in enumerate(gather.boxes)
        }
        self._anchor = torch.zeros((), requires_grad=True)
        self._live_copies: dict[int, tuple[weakref.ref[torch.Tensor], int, int]] = {}
        self.is_recomputing = False
        self.keep: Callable[[torch.Tensor], Any] = lambda tensor: tensor
        self.kept: Callable[[Any], torch.Tensor] = lambda tensor: tensor

    def begin(self, micro: int, num_micro: int) -> None:
        """Prepare for the program of a microbatch."""
        self.schedule.begin(last=micro == num_micro - 1)
        self._live_copies.clear()

    def fetch(self, name: str, layout: str, item: int) -> torch.Tensor:
        """The copy for a box of the program; the first box of a gather issues the messages due there."""
        place, at = self._places[name, layout]
        copies = self.schedule.copies(place, at, item if self.is_recomputing else None)
        copy: torch.Tensor = _ParameterUse.apply(self._anchor, copies[at], self, place, at)  # type: ignore[no-untyped-call]
        if self.each_use and not self.flow.gathers[place].kept:
            self._live_copies[copy.untyped_storage().data_ptr()] = (weakref.ref(copy), place, at)
        if not self.is_recomputing:
            self.schedule.end_forward_use(place, at)
        return copy

    def saved_tensors_context(self) -> AbstractContextManager[Any]:
        """Context in which autograd saves no copy that will be freed, only how to view it in the one gathered again."""
        if not self.each_use:
            return nullcontext()
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Context of a recomputation: copies stay until their gradients have come."""
        self.is_recomputing = True
        try:
            with self.saved_tensors_context():
                yield
        finally:
            self.is_recomputing = False

    def _pack(self, tensor: torch.Tensor) -> Any:
        # An address may belong to another tensor once the copy is gone, but not while the copy lives.
        entry = self._live_copies.get(tensor.untyped_storage().data_ptr())
        if entry is None or entry[0]() is None:
            return self.keep(tensor)
        return entry[1], entry[2], tensor.size(), tensor.stride(), tensor.storage_offset()

    def _unpack(self, packed: Any) -> torch.Tensor:
        if not isinstance(packed, tuple):
            return self.kept(packed)
        place, at, size, stride, offset = packed
        return torch.as_strided(self.schedule.gathers[place].wait_copies()[at], size, stride, offset)

    def _contribute(self, name: str, gradient: torch.Tensor) -> None:
        parameter = self.parameters[name]
        parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    def end(self) -> None:
        """Finish the backward of a microbatch: also return messages that miss a gradient which never came."""
        self.schedule.end()

    def finish(self) -> None:
        """After the last microbatch: bring every gradient to its parameter and drop the copies, which are stale."""
        self.schedule.finish()
        self._live_copies.clear()


class _ParameterUse(torch.autograd.Function):
    """A copy as the program reads it; backward passes its gradient to the gather.

    The first argument requires a gradient, so that autograd calls backward.
    """

    @staticmethod
    def forward(
        ctx: Any, _: torch.Tensor, copy: torch.Tensor, gathers: ParameterGathers, place: int, at: int
    ) -> torch.Tensor:
        ctx.gathers, ctx.place, ctx.at = gathers, place, at
        return copy.detach()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        ctx.gathers.schedule.add_gradient(ctx.place, ctx.at, grads[0])
        return None, None, None, None, None
