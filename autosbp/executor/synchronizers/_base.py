"""Contract of a kernel, which synchronizes one gradient message in every step."""

from __future__ import annotations

from abc import ABC, abstractmethod

from autosbp.executor.synchronizers._transport import Transport
from autosbp.program.gradient_messages import Message


class Kernel(ABC):
    """Synchronization of one message on one rank.

    ``reduce`` and ``update`` run on the communication thread, the other methods on the main thread. A step calls
    ``fill`` and ``reduce`` once the gradients of the message are complete, ``deliver`` once all reductions of the step
    are complete, and then ``update`` and ``install``. Steps may overlap: when ``fill`` is called, ``reduce`` and
    ``update`` of up to ``message.sync.staleness`` earlier steps may be pending; they run in order.
    """

    def __init__(self, message: Message, transport: Transport) -> None:
        self.message, self.transport = message, transport

    @abstractmethod
    def fill(self) -> None:
        """Copy the step's gradients from the parameters."""

    @abstractmethod
    def reduce(self) -> None:
        """Sum the gradients over the replicas: on every replica, or at the servers."""

    @abstractmethod
    def deliver(self) -> None:
        """Set the summed gradients of the parameters, unless a server applies them."""

    def update(self) -> None:  # noqa: B027 - most messages have no server
        """Apply the gradients at the servers and send the new values."""

    def install(self) -> None:  # noqa: B027 - most messages have no server
        """Copy the new values to the parameters."""
