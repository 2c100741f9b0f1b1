"""All-reduce of one message: hierarchical, or with a compressor."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from autosbp.executor.gradient_buckets import FlatGradients
from autosbp.executor.synchronizers._base import Kernel
from autosbp.executor.synchronizers._compressors import make_compressor
from autosbp.executor.synchronizers._transport import Transport
from autosbp.program.gradient_messages import Message


def all_reduce(flat: torch.Tensor, message: Message, transport: Transport) -> None:
    """Sum the flat tensors of all replicas in place, phase by phase of ``message.order``.

    Each phase but the last is a reduce-scatter, the last one an all-reduce; all-gathers follow in reverse order.
    """
    *outer, last = message.order
    count = flat.numel()
    part = flat
    if outer and count % message.padding_multiple:
        part = torch.cat([flat, flat.new_zeros(message.padded(count) - count)])
    whole = [part]
    for axes in outer:
        whole.append(transport.reduce_scatter(whole[-1], axes))
    transport.all_reduce(whole[-1], last)
    for axes in reversed(outer):
        summed = whole.pop()
        transport.all_gather(summed, axes, out=whole[-1])
    if part is not flat:
        flat.copy_(part[:count])


class AllReduceKernel(Kernel):
    """Sums gradients on every replica; every replica runs the optimizer."""

    def __init__(self, message: Message, parameters: Mapping[str, torch.Tensor], transport: Transport) -> None:
        super().__init__(message, transport)
        sizes = message.padded(message.num_elements) if message.sync.compressor is None else 0
        self._gradients = FlatGradients([parameters[shard.name] for shard in message.shards], message.shards, sizes)
        self._compressor = make_compressor(message, transport)
        self._flat = self._gradients.buffer

    def fill(self) -> None:
        self._flat = self._gradients.fill().view(-1)

    def reduce(self) -> None:
        if self._compressor is None:
            all_reduce(self._flat, self.message, self.transport)
        else:
            self._compressor.sum(self._flat, lambda flat: all_reduce(flat, self.message, self.transport))

    def deliver(self) -> None:
        self._gradients.deliver()
