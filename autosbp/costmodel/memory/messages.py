"""Gathered parameters and buckets of gradients without data: ``executor.packing``, ``.gathering`` and ``.reduction``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from autosbp.costmodel.memory import boxes
from autosbp.costmodel.memory.autograd import Leaf, Machine
from autosbp.costmodel.memory.tensors import GATHERED, GRADIENTS, Tensor, contiguous
from autosbp.costmodel.memory.views import plain_reshape
from autosbp.sbp.buckets import AT_END, Bucket
from autosbp.sbp.gathers import Gather
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.parameters import ParameterFlow

IN_FLIGHT = 2
"""As ``executor.gathering.IN_FLIGHT``."""


class Gradients:
    """The gradient of each parameter, as the optimizer will read it."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.of: dict[str, Tensor] = {}

    def add(self, name: str, gradient: Tensor) -> None:
        """Taken over where nothing else holds it and memory is in order, else copied; later ones are added in place."""
        if name in self.of:
            return
        if gradient.storage.pending or not gradient.is_contiguous:
            gradient = self.m.like(gradient)
        self.set(name, gradient)

    def set(self, name: str, gradient: Tensor) -> None:
        gradient.storage.become(GRADIENTS)
        self.of[name] = gradient


class Message:
    """One gather's parameters, from stored parts to copies, and gradients of these back."""

    def __init__(self, m: Machine, gather: Gather, parts: Sequence[Tensor], mesh: Mesh) -> None:
        self.m, self.gather, self.parts, self.mesh = m, gather, parts, mesh
        self.names = [box.ref.name for box in gather.boxes]
        self.ranks = mesh.group_size(gather.step.axes) if gather.flat else 1
        self.alone = gather.flat and len(parts) == 1 and prod(parts[0].shape[: gather.step.src_dim]) == 1
        self.elements = sum(prod(part.shape) for part in parts)
        self.copies: list[Tensor] | None = None
        self.missing = len(parts)
        self._whole: Tensor | None = None
        self._gradient: Tensor | None = None
        self._total: Tensor | None = None
        self._back: tuple[Tensor, Tensor] | None = None

    @property
    def width(self) -> int:
        return self.parts[0].width

    def _flat(self, ranks: int) -> Tensor:
        return self.m.new((ranks * self.elements,), self.width, purpose=GATHERED)

    def send(self) -> None:
        if self.gather.flat:
            self._whole = self._flat(self.ranks)
        else:
            self._whole = boxes.ahead(self.m, self.parts[0], self.gather.boxes[0].steps, self.mesh)
            self._whole.storage.become(GATHERED if self._whole.storage is not self.parts[0].storage else "parameters")

    def present(self) -> list[Tensor]:
        """The copies; sent for here where nobody has."""
        if self.copies is None:
            if self._whole is None:
                self.send()
            whole, self._whole = self._whole, None
            assert whole is not None
            if not self.gather.flat:
                self.copies = [whole]
            elif self.alone:
                shape = self._copy_shape(0)
                self.copies = [whole.view(shape, contiguous(shape))]
            else:
                shapes = [self._copy_shape(at) for at in range(len(self.parts))]
                self.copies = [self.m.new(shape, self.width, purpose=GATHERED) for shape in shapes]
        return self.copies

    def _copy_shape(self, at: int) -> tuple[int, ...]:
        shape = list(self.parts[at].shape)
        shape[self.gather.boxes[at].steps[0].src_dim] *= self.ranks
        return tuple(shape)

    def add_gradient(self, gradient: Tensor) -> None:
        if not self.gather.flat:
            self._gradient = gradient if self._gradient is None else self.m.like(gradient)
        elif self.alone:
            flat = plain_reshape(self.m, gradient, (prod(gradient.shape),))
            self._gradient = flat if self._gradient is None else self.m.like(flat)
        elif self._gradient is None:
            self._gradient = self._flat(self.ranks)
        if self._gradient is not None:
            self._gradient.storage.become(GATHERED)

    def send_back(self) -> None:
        self.settle()
        gradient, self._gradient = self._gradient, None
        if self.gather.flat:
            self._back = self._flat(1), gradient if gradient is not None else self._flat(self.ranks)
            return
        steps = self.gather.boxes[0].steps
        value = gradient if gradient is not None else boxes.ahead(self.m, self.parts[0], steps, self.mesh)
        del gradient
        value = boxes.back(self.m, value, steps, self.mesh)
        self._total = self.m.new(value.shape, self.width, purpose=GRADIENTS)

    def settle(self) -> None:
        if self._back is not None:
            boxes.stage(self.m, self._back[1])
            self._total = self._total or self._back[0]
            self._back = None

    def take(self) -> list[Tensor]:
        """The gradients of the parts."""
        self.settle()
        total, self._total = self._total, None
        if total is None:
            return []
        return [total.view(part.shape, contiguous(part.shape)) for part in self.parts]


class Gathers:
    """All gathers of a step, as ``executor.gathering.ParameterGathers`` runs them."""

    def __init__(
        self,
        m: Machine,
        flow: ParameterFlow,
        each_use: bool,
        parts: Mapping[str, Tensor],
        gradients: Gradients,
        mesh: Mesh,
        arrived: Callable[[str], None],
        *,
        late: bool = False,
    ) -> None:
        self.m, self.flow, self.each_use, self.gradients, self.arrived = m, flow, each_use, gradients, arrived
        self.late = late
        self.messages = [
            Message(m, gather, [parts[box.ref.name] for box in gather.boxes], mesh) for gather in flow.gathers
        ]
        self._anchor = m.new((), 0)
        self._anchor.node = Leaf(lambda _: None)
        self._returning: list[Message] = []
        self._returns = self._last = False
        self.again: dict[int, list[int]] = {}
        for at, gather in enumerate(flow.gathers):
            if gather.again >= 0 and not gather.kept and not gather.recomputed:
                self.again.setdefault(gather.again, []).append(at)

    def begin(self, last: bool) -> None:
        self._last, self._returns = last, self.each_use or (last and not self.late)

    def fetch(self, key: Any, again: int | None) -> Tensor:
        """The copy that a box of the program stands for; ``again`` is the box's item where it is recomputed."""
        place, at = self.flow.place[key]
        message, gather = self.messages[place], self.flow.gathers[place]
        if again is not None:
            self._send(self.flow.recompute_sends.get(again, ()))
        elif at == 0 and message.copies is None:
            self._send(self.flow.forward_sends.get(gather.first, ()))
        copies = message.present()
        lent = self.each_use and not gather.kept
        copy = copies[at].view(copies[at].shape, copies[at].strides)
        copy.storage.lent = lent
        self.m.record([copy], [self._anchor], [], lambda grads, _: self._returned(message, grads))
        if self.each_use and at == len(copies) - 1 and again is None:
            message.copies = None
        return copy

    def leave_out(self, place: int, boxes: int) -> None:
        """Gradients of so many copies of a message do not come in this pass."""
        self.messages[place].missing -= boxes

    def before_backward(self, at: int) -> Callable[[], None] | None:
        """What the backward of item ``at`` begins with, if anything."""
        sends, due = self.flow.backward_sends.get(at, ()), self.again.get(at, ())
        if not sends and not due:
            return None

        def run() -> None:
            self._send(sends)
            for place in due:
                self.messages[place].present()

        return run

    def _send(self, places: Sequence[int]) -> None:
        for place in places:
            self.messages[place].send()

    def _returned(self, message: Message, grads: list[Any]) -> list[Tensor | None]:
        message.add_gradient(grads[0])
        message.missing -= 1
        if not message.missing:
            self._complete(message)
        return [None]

    def _complete(self, message: Message) -> None:
        message.missing = len(message.parts)
        if self.each_use:
            message.copies = None
        if not self._returns:
            return
        self._send_back(message)
        if self._last and not message.gather.flat:
            self._contribute(message)
            for name in message.names:
                self.arrived(name)

    def _send_back(self, message: Message) -> None:
        if len(self._returning) == IN_FLIGHT:
            self._returning.pop(0).settle()
        message.send_back()
        self._returning.append(message)

    def _contribute(self, message: Message) -> None:
        for name, gradient in zip(message.names, message.take(), strict=False):
            self.gradients.add(name, gradient)

    def end(self) -> None:
        for message in self.messages:
            if message.missing < len(message.parts):
                self._complete(message)

    def finish(self) -> None:
        for at in sorted(range(len(self.messages)), key=lambda at: -self.flow.gathers[at].ready) if self.late else ():
            self._send_back(self.messages[at])
        self._returning.clear()
        for message in self.messages:
            if message.gather.flat or self.late:
                self._contribute(message)
            message.copies = None


class Buckets:
    """Flat buffers of gradients, there from the start, as ``executor.reduction.GradientBuckets`` keeps them."""

    def __init__(self, m: Machine, flow: ParameterFlow, parts: Mapping[str, Tensor], gradients: Gradients) -> None:
        self.m, self.buckets, self.parts, self.gradients = m, flow.buckets, parts, gradients
        self.open = False
        self._home = {name: at for at, bucket in enumerate(flow.buckets) for name in bucket.names}
        self._missing = [
            sum(flow.sources[name] for name in bucket.names) + (bucket.ready == AT_END) for bucket in flow.buckets
        ]
        self._next = 0
        self._buffers = [self._buffer(bucket) for bucket in flow.buckets]

    def _buffer(self, bucket: Bucket) -> Tensor | None:
        if len(bucket.names) == 1:
            return None
        elements = sum(prod(self.parts[name].shape) for name in bucket.names)
        return self.m.new((elements,), self.parts[bucket.names[0]].width, purpose=GRADIENTS)

    def accumulated(self, name: str, gradient: Tensor) -> None:
        """Autograd has added up what the program sends to a parameter."""
        self.gradients.add(name, gradient)
        del gradient
        if self.open:
            self.arrived(name)

    def arrived(self, name: str) -> None:
        at = self._home.get(name)
        if at is None:
            return
        self._missing[at] -= 1
        while self._next < len(self.buckets) and self._missing[self._next] == 0:
            self._issue()

    def finish(self) -> None:
        while self._next < len(self.buckets):
            self._issue()

    def _issue(self) -> None:
        bucket, buffer = self.buckets[self._next], self._buffers[self._next]
        self._next += 1
        if buffer is None:
            return
        for name in bucket.names:
            shape = self.parts[name].shape
            self.gradients.of[name] = buffer.view(shape, contiguous(shape))
