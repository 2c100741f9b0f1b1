"""Gather schedule: when a rank gathers parameters, how long copies live, and when their gradients return.

The executor runs it over real messages, the memory model over meta tensors, so both issue and free the same buffers.
Gathered once a step, copies stay until its end, and gradients return in the last microbatch or after all passes (ZeRO-1
and 2). Gathered for each use, a copy lives from its first to its last reader in forward, is gathered again when
backward first needs it, and gradients return in every microbatch (ZeRO-3; Zhao et al. 2023, "PyTorch FSDP").
``program.parameter_flow`` decides which parameters travel together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from autosbp.program.parameter_flow import ParameterFlow
from autosbp.program.parameter_gathers import Gather

T = TypeVar("T")

IN_FLIGHT = 2
"""Maximum number of gradient messages in flight, which limits the number of buffers."""


class GatherMessage(Protocol[T]):
    """Message of one gather: stored parts to full copies, and the copies' gradients back to the parts.

    Gradients may be added any number of times before ``start_reduce``, which may run any number of times."""

    def start_gather(self) -> None:
        """Start to gather the copies."""

    def wait_copies(self) -> list[T]:
        """Wait for the copies; returns them in the order of the boxes."""

    def add_gradient(self, at: int, gradient: T) -> None:
        """Add a gradient of copy ``at``."""

    def start_reduce(self) -> None:
        """Start to return the gradients to the ranks that store the parts."""

    def wait_gradients(self) -> None:
        """Wait for the last ``start_reduce``."""

    def take(self) -> list[T]:
        """The gradients of the parts since the last call, after waiting for them; empty if none were returned."""


class GatherSchedule(Generic[T]):
    """The gathers of one rank in a step.

    Args:
        flow: the strategy's parameter flow; a place is an index into its gathers.
        each_use: copies are freed after forward and gathered again.
        messages: one for each gather.
        contribute: called with a parameter's name and a returned gradient of its part.
        arrived: called with a parameter's name when the last microbatch has returned its gradient within backward.
        late: gradients return in ``finish``, since some are complete only after backward (``program.deferred_wgrad``).

    Call ``begin`` and ``end`` around each microbatch, then ``finish``. Not thread-safe.
    """

    def __init__(
        self,
        flow: ParameterFlow,
        each_use: bool,
        messages: Sequence[GatherMessage[T]],
        contribute: Callable[[str, T], None],
        arrived: Callable[[str], None],
        *,
        late: bool = False,
    ) -> None:
        self.flow, self.each_use, self.late = flow, each_use, late
        self.contribute, self.arrived = contribute, arrived
        self.gathers = [_GatherState(*each) for each in zip(flow.gathers, messages, strict=True)]
        self._in_flight: list[_GatherState[T]] = []
        self._is_last = self._returns = False

    def begin(self, *, last: bool) -> None:
        """Prepare for a pass of the program; ``last`` for that of the last microbatch."""
        self._is_last, self._returns = last, self.each_use or (last and not self.late)

    def copies(self, place: int, at: int, recomputed_item: int | None) -> list[T]:
        """The copies of a gather for its box ``at``; the first box issues the messages that are due there.

        Args:
            recomputed_item: the box's item if it is recomputed in backward, else None.
        """
        gather = self.gathers[place]
        if recomputed_item is not None:
            self.send(self.flow.recompute_gathers.get(recomputed_item, ()))
        elif at == 0 and gather.copies is None:
            self.send(self.flow.forward_gathers.get(gather.flow.first, ()))
        return gather.wait_copies()

    def end_forward_use(self, place: int, at: int) -> None:
        """Free the copies of a gather once the last of its boxes has run in forward, if they are gathered again."""
        gather = self.gathers[place]
        if self.each_use and at == len(gather.flow.boxes) - 1:
            gather.copies = None

    def send(self, places: Sequence[int]) -> None:
        """Issue gathers."""
        for place in places:
            self.gathers[place].start()

    def send_for_backward(self, item: int) -> None:
        """Issue the gathers due before the backward of an item."""
        self.send(self.flow.backward_gathers.get(item, ()))

    def add_gradient(self, place: int, at: int, gradient: T) -> None:
        """Take the complete gradient of one copy from backward."""
        gather = self.gathers[place]
        gather.message.add_gradient(at, gradient)
        gather.missing -= 1
        if not gather.missing:
            self._complete(gather)

    def end(self) -> None:
        """Finish the backward of a microbatch: also return gathers that miss a gradient which never came."""
        for gather in self.gathers:
            if gather.missing < len(gather.flow.boxes):
                self._complete(gather)

    def finish(self) -> None:
        """After the last microbatch: bring every gradient to its parameter and drop the copies, which are stale."""
        # Late gradients return in the order in which backward completes them.
        for gather in sorted(self.gathers, key=lambda each: -each.flow.ready) if self.late else ():
            self._send_back(gather)
        self._in_flight.clear()
        for gather in self.gathers:
            if gather.flow.flat or self.late:
                self._contribute(gather)
        self.drop_copies()

    def drop_copies(self) -> None:
        """Free the copies: after the last microbatch, and after passes without backward."""
        for gather in self.gathers:
            gather.copies = None

    def _complete(self, gather: _GatherState[T]) -> None:
        gather.missing = len(gather.flow.boxes)
        if self.each_use:
            gather.copies = None
        if not self._returns:
            return
        self._send_back(gather)
        if self._is_last and not gather.flow.flat:
            self._contribute(gather)
            for name in gather.names:
                self.arrived(name)

    def _send_back(self, gather: _GatherState[T]) -> None:
        if len(self._in_flight) == IN_FLIGHT:
            self._in_flight.pop(0).message.wait_gradients()
        gather.message.start_reduce()
        self._in_flight.append(gather)

    def _contribute(self, gather: _GatherState[T]) -> None:
        for name, gradient in zip(gather.names, gather.message.take(), strict=False):
            self.contribute(name, gradient)


class _GatherState(Generic[T]):
    """One gather's message, its copies, and the number of gradients that have not come yet."""

    def __init__(self, flow: Gather, message: GatherMessage[T]) -> None:
        self.flow, self.message = flow, message
        self.names = [box.ref.name for box in flow.boxes]
        self.copies: list[T] | None = None
        self.missing = len(self.names)
        self._is_sent = False

    def start(self) -> None:
        self.message.start_gather()
        self._is_sent = True

    def wait_copies(self) -> list[T]:
        """The copies, after waiting for them; sends the message first if that has not been done."""
        if self.copies is None:
            if not self._is_sent:
                self.message.start_gather()
            self.copies, self._is_sent = self.message.wait_copies(), False
        return self.copies
