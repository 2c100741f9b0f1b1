"""The contract of a kernel: the synchronization of one gradient message in every step."""

from __future__ import annotations

from abc import ABC, abstractmethod

from autosbp.executor.synchronizers._transport import Transport
from autosbp.program.gradient_messages import Message


class Kernel(ABC):
    """One message on one rank. ``reduce`` and ``update`` run on the communication thread, the others on the program's.

    A step calls ``fill`` and ``reduce`` when the message's gradients are complete, ``deliver`` when all reductions of
    the step are, then ``update`` and ``install``. Steps may overlap: ``reduce`` and ``update`` of up to
    ``message.sync.staleness`` steps may be outstanding, in order, when ``fill`` is called.
    """

    def __init__(self, message: Message, transport: Transport) -> None:
        self.message, self.transport = message, transport

    @abstractmethod
    def fill(self) -> None:
        """Take the step's gradients from the parameters."""

    @abstractmethod
    def reduce(self) -> None:
        """Sum them over the replicas, as far as the message's synchronizer does."""

    @abstractmethod
    def deliver(self) -> None:
        """Give the parameters their complete gradients, unless a server applies them."""

    def update(self) -> None:  # noqa: B027 - most messages have no server
        """Apply gradients at the server and send new values."""

    def install(self) -> None:  # noqa: B027 - most messages have no server
        """Give the parameters their new values."""
