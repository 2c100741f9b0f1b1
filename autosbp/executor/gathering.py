"""Parameters whose use has another layout than their store: gathered for the program, their gradients brought back.

Once a step, the copies stay until its end, and gradients return in the last microbatch, or when all passes are over (ZeRO-1
and 2). In each use, a
copy lives from its first reader of forward to its last, is gathered again where backward first needs it, and gradients
return in every microbatch (ZeRO-3; Zhao et al. 2023, "PyTorch FSDP"). Which parameters travel together, and when, is
``sbp.parameters``'s; how one message is packed is ``executor.packing``'s.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from autosbp.executor.packing import Message, make_message
from autosbp.executor.runtime import Runtime, current
from autosbp.sbp.parameters import ParameterFlow
from autosbp.sbp.placement import format_nd_sbp

IN_FLIGHT = 2
"""Messages of gradients under way at once, so that their buffers stay few."""


def gathered(name: str, layout: str, item: int) -> torch.Tensor:
    """In a program, as item ``item``: the copy of a parameter in the layout of its use."""
    copy: torch.Tensor = current().gathers.fetch(name, layout, item)
    return copy


def later_sink(copy: torch.Tensor) -> Callable[[torch.Tensor], None]:
    """Where a gradient of a copy that ``gathered`` gave goes when it comes outside of backward."""
    use: Any = copy.grad_fn
    message: Message = use.gather.message
    return partial(message.add_gradient, use.at)


def gather_again(value: torch.Tensor, item: int) -> None:
    """In a program, after item ``item`` made ``value``: before its backward, its parameters are gathered again."""
    if value.grad_fn is not None:
        gathers = current().gathers
        value.grad_fn.register_prehook(lambda _: gathers.send_again(item))


class ParameterGathers:
    """The gathers of one rank.

    Args:
        flow: of the strategy.
        each_use: whether copies are freed after forward, see the module's docstring.
        parameters: this rank's parts by name. Those that travel in flat messages are replaced: they become views.
        runtime: whose groups are used, and which records what is issued.
        arrived: called when the last microbatch has brought back a parameter's gradient within its backward.
        late: gradients return in ``finish``: some come when backward is over (``sbp.deferral``).

    ``keep`` and ``kept`` are how autograd keeps every other tensor, and has it back: a trial counts there.
    ``begin`` and ``end`` are called around each microbatch, in which the program calls ``gathered``; then ``finish``.
    Not safe across threads.
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
        self.flow, self.each_use, self.parameters, self.arrived = flow, each_use, parameters, arrived
        self.late = late
        self._gathers = []
        for gather in flow.gathers:
            names = [box.ref.name for box in gather.boxes]
            message = make_message(gather, [parameters[name] for name in names], runtime)
            parameters.update(zip(names, message.stored, strict=True))
            self._gathers.append(_Gather(names, message, gather.flat, gather.kept, gather.first))
        self._places = {
            (box.ref.name, format_nd_sbp(box.dst)): (self._gathers[at], i)
            for at, gather in enumerate(flow.gathers)
            for i, box in enumerate(gather.boxes)
        }
        self._anchor = torch.zeros((), requires_grad=True)
        self._lent: dict[int, tuple[weakref.ref[torch.Tensor], _Gather, int]] = {}
        self._returning: list[_Gather] = []
        self._returns = self._again = False
        self.last = False
        self.keep: Callable[[torch.Tensor], Any] = lambda tensor: tensor
        self.kept: Callable[[Any], torch.Tensor] = lambda tensor: tensor

    def begin(self, micro: int, num_micro: int) -> None:
        """Before the program of a microbatch."""
        self.last = micro == num_micro - 1
        self._returns = self.each_use or (self.last and not self.late)
        self._lent.clear()

    def fetch(self, name: str, layout: str, item: int) -> torch.Tensor:
        """The copy that a box of the program stands for; where it is the first of its gather, what is due is sent."""
        gather, at = self._places[name, layout]
        if self._again:
            self._send(self.flow.recompute_sends.get(item, ()))
        elif at == 0 and gather.copies is None:
            self._send(self.flow.forward_sends.get(gather.first, ()))
        copies = gather.present()
        copy: torch.Tensor = _Use.apply(self._anchor, copies[at], self, gather, at)  # type: ignore[no-untyped-call]
        if self.each_use:
            if not gather.kept:
                self._lent[copy.untyped_storage().data_ptr()] = (weakref.ref(copy), gather, at)
            if at == len(copies) - 1 and not self._again:
                gather.copies = None
        return copy

    def send_again(self, item: int) -> None:
        """Before the backward of an op."""
        self._send(self.flow.backward_sends.get(item, ()))

    def _send(self, places: tuple[int, ...]) -> None:
        for place in places:
            self._gathers[place].message.send()
            self._gathers[place].sent = True

    def saving(self) -> AbstractContextManager[Any]:
        """Within, autograd keeps no copy that is to be freed, only how to cut it out of one that is gathered again."""
        if not self.each_use:
            return nullcontext()
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Within, what backward needs is run once more: copies stay until their gradients have come."""
        self._again = True
        try:
            with self.saving():
                yield
        finally:
            self._again = False

    def _pack(self, tensor: torch.Tensor) -> Any:
        # An address may belong to another tensor once the copy is gone; while the copy lives, it is the copy's.
        entry = self._lent.get(tensor.untyped_storage().data_ptr())
        if entry is None or entry[0]() is None:
            return self.keep(tensor)
        return entry[1], entry[2], tensor.size(), tensor.stride(), tensor.storage_offset()

    def _unpack(self, packed: Any) -> torch.Tensor:
        if not isinstance(packed, tuple):
            return self.kept(packed)
        gather, at, size, stride, offset = packed
        return torch.as_strided(gather.present()[at], size, stride, offset)

    def returned(self, gather: _Gather, at: int, gradient: torch.Tensor) -> None:
        """Backward has the whole gradient of one copy."""
        gather.message.add_gradient(at, gradient)
        gather.missing -= 1
        if not gather.missing:
            self._complete(gather)

    def _complete(self, gather: _Gather) -> None:
        gather.missing = len(gather.names)
        if self.each_use:
            gather.copies = None
        if not self._returns:
            return
        self._send_back(gather)
        if self.last and not gather.flat:
            self._contribute(gather)
            for name in gather.names:
                self.arrived(name)

    def _send_back(self, gather: _Gather) -> None:
        if len(self._returning) == IN_FLIGHT:
            self._returning.pop(0).message.settle()
        gather.message.send_back()
        self._returning.append(gather)

    def _contribute(self, gather: _Gather) -> None:
        for name, gradient in zip(gather.names, gather.message.take(), strict=False):
            parameter = self.parameters[name]
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    def end(self) -> None:
        """After the backward of a microbatch: what it left incomplete, because a gradient never came, goes too."""
        for gather in self._gathers:
            if gather.missing < len(gather.names):
                self._complete(gather)

    def finish(self) -> None:
        """After the last microbatch: every gradient is where its parameter is, and the copies, now stale, are gone."""
        for gather in self._last_ready_first() if self.late else ():
            self._send_back(gather)
        self._returning.clear()
        for gather in self._gathers:
            if gather.flat or self.late:
                self._contribute(gather)
            gather.copies = None
        self._lent.clear()

    def _last_ready_first(self) -> list[_Gather]:
        """In the order in which backward completes their gradients."""
        places = sorted(range(len(self._gathers)), key=lambda at: -self.flow.gathers[at].ready)
        return [self._gathers[at] for at in places]


class _Gather:
    """One gather's message and what is there of it."""

    def __init__(self, names: list[str], message: Any, flat: bool, kept: bool, first: int) -> None:
        self.names, self.message, self.flat, self.kept, self.first = names, message, flat, kept, first
        self.copies: list[torch.Tensor] | None = None
        self.sent = False
        self.missing = len(names)

    def present(self) -> list[torch.Tensor]:
        """The copies, waited for; sent for here where nobody has."""
        if self.copies is None:
            if not self.sent:
                self.message.send()
            self.copies, self.sent = self.message.receive(), False
        return self.copies


class _Use(torch.autograd.Function):
    """A copy as the program reads it; its gradient goes to its gather. The first argument makes autograd come
    back."""

    @staticmethod
    def forward(
        ctx: Any, _: torch.Tensor, copy: torch.Tensor, gathers: ParameterGathers, gather: _Gather, at: int
    ) -> torch.Tensor:
        ctx.gathers, ctx.gather, ctx.at = gathers, gather, at
        return copy.detach()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        ctx.gathers.returned(ctx.gather, ctx.at, grads[0])
        return None, None, None, None, None
