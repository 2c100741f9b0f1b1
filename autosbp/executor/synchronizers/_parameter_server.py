"""Parameter server: a destination sums and applies the gradients, and sends the new values to all replicas.

Bounded staleness: the message of each step is a version, and the server applies versions in order. A replica may have up
to ``staleness`` versions in flight and then waits for the oldest one. Every replica installs version t - ``staleness``
at the end of step t, so that the result does not depend on timing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from autosbp.errors import InputError
from autosbp.executor.gradient_buckets import part_of
from autosbp.executor.parameter_shards import gradient_dtype
from autosbp.executor.synchronizers._base import Kernel
from autosbp.executor.synchronizers._compressors import HalfPrecision, make_compressor
from autosbp.executor.synchronizers._transport import Transport
from autosbp.program.gradient_messages import HALF_BYTES, Message, MessageCall, Shard
from autosbp.program.sync_checks import SYNC_FIELD

MakeOptimizer = Callable[[list[torch.Tensor]], Any]


class Served:
    """Shards of one server, and their flat messages."""

    def __init__(self, shards: Sequence[Shard], parameters: Mapping[str, torch.Tensor]) -> None:
        self.shards = list(shards)
        self.parameters = [parameters[shard.name] for shard in shards]
        self.dtype = gradient_dtype(self.parameters[0])
        self._sizes = [shard.num_elements for shard in shards]

    def gradients(self) -> torch.Tensor:
        """A new flat tensor with this replica's gradients; zeros for parameters without one."""
        parts = [
            part_of(parameter.grad, shard).reshape(-1).to(self.dtype)
            if parameter.grad is not None
            else parameter.new_zeros(shard.num_elements, dtype=self.dtype)
            for shard, parameter in zip(self.shards, self.parameters, strict=True)
        ]
        return torch.cat(parts) if len(parts) > 1 else parts[0].clone()

    def values(self) -> torch.Tensor:
        """A new flat tensor with the values of the parameters."""
        pairs = zip(self.shards, self.parameters, strict=True)
        return torch.cat([part_of(parameter.detach(), shard).reshape(-1) for shard, parameter in pairs])

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Views of the shards in a flat tensor."""
        pieces = torch.split(flat, self._sizes)
        return [piece.view(shard.shape) for piece, shard in zip(pieces, self.shards, strict=True)]

    def install(self, flat: torch.Tensor) -> None:
        """Copy new values to the parameters."""
        with torch.no_grad():
            for shard, parameter, view in zip(self.shards, self.parameters, self.views(flat), strict=True):
                part_of(parameter, shard).copy_(view)

    def set_gradients(self, flat: torch.Tensor) -> None:
        """Copy summed gradients to ``parameter.grad``."""
        for shard, parameter, view in zip(self.shards, self.parameters, self.views(flat), strict=True):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter, dtype=self.dtype)
            part_of(parameter.grad, shard).copy_(view)


class _Server:
    """Values and optimizer of the shards for which this rank is the server."""

    def __init__(self, served: Served, make_optimizer: MakeOptimizer) -> None:
        self.values = served.values()
        self._views = [view.requires_grad_() for view in served.views(self.values)]
        for view in self._views:
            view.grad_dtype = served.dtype
        self._served, self.optimizer = served, make_optimizer(self._views)

    def apply(self, total: torch.Tensor) -> None:
        """Step the optimizer with these summed gradients."""
        for view, gradient in zip(self._views, self._served.views(total), strict=True):
            view.grad = gradient
        self.optimizer.step()


class ParameterServerKernel(Kernel):
    """Push gradients to the servers, apply them there, pull the new values.

    Args:
        message: the gradient message.
        parameters: this rank's local parameters, by name.
        transport: communication of the message.
        make_optimizer: makes the optimizer of a server's shards; None if the caller's optimizer steps all parameters on
            every replica: then servers send back summed gradients instead of new values.

    Raises:
        InputError: the message is stale, and there is no ``make_optimizer``.
    """

    def __init__(
        self,
        message: Message,
        parameters: Mapping[str, torch.Tensor],
        transport: Transport,
        make_optimizer: MakeOptimizer | None,
    ) -> None:
        super().__init__(message, transport)
        if make_optimizer is None and message.sync.staleness:
            limit = "staleness needs an optimizer at the server: the caller's steps all parameters at once"
            raise InputError(
                f"{SYNC_FIELD}.parameters.{message.shards[0].name}.staleness", message.sync.staleness, limit
            )
        self.served = [Served(message.at(destination), parameters) for destination in message.destinations]
        own = transport.replica(message.axes)
        self._of_gradients = make_optimizer is None
        self.servers = {
            at: _Server(self.served[at], make_optimizer)
            for at, destination in enumerate(message.destinations)
            if make_optimizer is not None and destination == own
        }
        compressors = [make_compressor(message, transport) for _ in self.served]
        self._compressors = [each for each in compressors if isinstance(each, HalfPrecision)]
        self._filled: deque[list[torch.Tensor]] = deque()
        self._reduced: deque[list[torch.Tensor]] = deque()
        self._pulled: deque[list[torch.Tensor]] = deque()

    def fill(self) -> None:
        self._filled.append([served.gradients() for served in self.served])
        for served in () if self._of_gradients else self.served:
            for parameter in served.parameters:
                parameter.grad = None

    def reduce(self) -> None:
        sums = self._filled.popleft()
        width = sums[0].element_size()
        for turn in self.message.pushes(HALF_BYTES if self._compressors else width):
            messages = [self._encoded(at, call, total) for at, (call, total) in enumerate(zip(turn, sums, strict=True))]
            received = self.transport.push(list(zip(turn, messages, strict=True)))
            for total, others in zip(sums, received, strict=True):
                for other in others:
                    total.add_(other)
        self._reduced.append(sums)
        if self._of_gradients:
            self._send_back(self._reduced.popleft(), width)

    def _encoded(self, at: int, call: MessageCall, total: torch.Tensor) -> torch.Tensor:
        """This rank's encoded message to a server; the root of a push sends nothing, so it has no compression error."""
        if not self._compressors:
            return total
        compressor = self._compressors[at]
        sends = self.transport.sends(call)
        return compressor.encode(total) if sends else total.to(compressor.dtype)

    def deliver(self) -> None:
        if self._of_gradients:
            for served, total in zip(self.served, self._pulled.popleft(), strict=True):
                served.set_gradients(total)

    def update(self) -> None:
        values = []
        for at, total in enumerate(self._reduced.popleft()):
            server = self.servers.get(at)
            if server is None:
                values.append(total.new_empty(total.shape, dtype=self.served[at].parameters[0].dtype))
            else:
                server.apply(total)
                values.append(server.values.detach().clone())
        self._send_back(values, values[0].element_size())

    def install(self) -> None:
        for served, values in zip(self.served, self._pulled.popleft(), strict=True):
            served.install(values)

    def _send_back(self, tensors: list[torch.Tensor], width: int) -> None:
        for turn in self.message.pulls(width):
            self.transport.pull(list(zip(turn, tensors, strict=True)))
        self._pulled.append(tensors)
