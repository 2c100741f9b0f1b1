"""Sparse gradients: non-zero rows are sent as indices and values, by all-gather or through servers.

In a round, each replica sends at most ``sparse_rows`` rows of each shard. If a batch touches more rows than that on any
replica, all replicas take more rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch
import torch.distributed as dist

from autosbp.executor.gradient_buckets import part_of
from autosbp.executor.parameter_shards import gradient_dtype
from autosbp.executor.synchronizers._base import Kernel
from autosbp.executor.synchronizers._transport import Transport
from autosbp.plan.synchronizers import ALL_REDUCE
from autosbp.program.gradient_messages import PULL, PUSH, Message, MessageCall

Rows = Sequence[torch.Tensor]
"""Indices of the non-zero rows of each shard, ascending."""


class SparseKernel(Kernel):
    """Sums sparse gradients on every replica; every replica runs the optimizer."""

    def __init__(self, message: Message, parameters: Mapping[str, torch.Tensor], transport: Transport) -> None:
        super().__init__(message, transport)
        self._parameters = [parameters[shard.name] for shard in message.shards]
        self._gradients: list[torch.Tensor] = []

    def fill(self) -> None:
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter, dtype=gradient_dtype(parameter))
        pairs = zip(self._parameters, self.message.shards, strict=True)
        self._gradients = [part_of(parameter.grad, shard) for parameter, shard in pairs if parameter.grad is not None]

    def reduce(self) -> None:
        message, capacities = self.message, self.message.row_capacities(self.message.shards)
        rows = [nonzero_rows(gradient) for gradient in self._gradients]
        rounds = self._rounds(rows, capacities) if message.counts_rows else 1
        if message.sync.synchronizer == ALL_REDUCE:
            parts = [_encode(self._gradients, rows, capacities, at) for at in range(rounds)]
            for gradient, own in zip(self._gradients, rows, strict=True):
                gradient[own] = 0
            for indices, values in parts:
                self._add_everyones(indices, values, capacities)
        else:
            self._through_servers(rows, capacities, rounds)

    def deliver(self) -> None:
        self._gradients = []

    def _rounds(self, rows: Rows, capacities: Sequence[int]) -> int:
        """Number of rounds: enough for the replica with the most non-zero rows."""
        counts = torch.tensor([own.numel() for own in rows], dtype=torch.int64, device=rows[0].device)
        self.transport.all_reduce(counts, self.message.axes, dist.ReduceOp.MAX)
        found: list[int] = counts.tolist()
        return max(1, *(-(-count // most) for count, most in zip(found, capacities, strict=True)))

    def _add_everyones(self, indices: torch.Tensor, values: torch.Tensor, capacities: Sequence[int]) -> None:
        ranks = self.message.num_ranks
        everywhere = self.transport.all_gather(indices, self.message.axes).view(ranks, -1)
        everything = self.transport.all_gather(values, self.message.axes).view(ranks, -1)
        for one, other in zip(everywhere, everything, strict=True):
            _add(self._gradients, one, other, capacities)

    def _through_servers(self, rows: Rows, capacities: Sequence[int], rounds: int) -> None:
        """Sum the rows of all replicas at the servers, which send back the non-zero rows."""
        message = self.message
        places = [
            [at for at, shard in enumerate(message.shards) if shard.destination == destination]
            for destination in message.destinations
        ]
        own = self.transport.replica(message.axes)
        for at in range(rounds):
            sent = [
                _encode(*_chosen(chosen, self._gradients, rows, capacities), at) if destination != own
                else _empty(*_chosen(chosen, self._gradients, rows, capacities))
                for destination, chosen in zip(message.destinations, places, strict=True)
            ]  # fmt: skip
            arrived = self._exchange(PUSH, sent)
            for number, chosen in enumerate(places):
                gradients, _, most = _chosen(chosen, self._gradients, rows, capacities)
                for indices, values in zip(*arrived[2 * number : 2 * number + 2], strict=True):
                    _add(gradients, indices, values, most)
        self._send_back(places, rows, rounds, own)

    def _send_back(self, places: Sequence[Sequence[int]], rows: Rows, rounds: int, own: int) -> None:
        message = self.message
        union = message.union_capacities(message.shards)
        totals = list(rows)
        for at, (gradient, shard) in enumerate(zip(self._gradients, message.shards, strict=True)):
            if shard.destination == own:
                totals[at] = nonzero_rows(gradient)
            else:
                gradient[rows[at]] = 0
        for at in range(rounds):
            sent = []
            for destination, chosen in zip(message.destinations, places, strict=True):
                gradients, found, most = _chosen(chosen, self._gradients, totals, union)
                sent.append(
                    _encode(gradients, found, most, at) if destination == own else _empty(gradients, found, most)
                )
            self._exchange(PULL, sent)
            for destination, chosen, (indices, values) in zip(message.destinations, places, sent, strict=True):
                if destination != own:
                    _add(
                        _chosen(chosen, self._gradients, totals, union)[0], indices, values, [union[k] for k in chosen]
                    )

    def _exchange(self, kind: str, sent: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[list[torch.Tensor]]:
        """Push or pull indices and values: two messages for each server."""
        axes = self.message.axes
        messages = [
            (MessageCall(kind, tensor.numel() * tensor.element_size(), axes, destination), tensor)
            for destination, pair in zip(self.message.destinations, sent, strict=True)
            for tensor in pair
        ]
        if kind == PUSH:
            return self.transport.push(messages)
        self.transport.pull(messages)
        return []


def nonzero_rows(gradient: torch.Tensor) -> torch.Tensor:
    """Indices of the rows with a non-zero element."""
    return (gradient != 0).flatten(1).any(1).nonzero().squeeze(1)


def _chosen(
    places: Sequence[int], gradients: Sequence[torch.Tensor], rows: Rows, capacities: Sequence[int]
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[int]]:
    """Gradients, rows and capacities of the shards at ``places``."""
    return [gradients[at] for at in places], [rows[at] for at in places], [capacities[at] for at in places]


def _encode(
    gradients: Sequence[torch.Tensor], rows: Rows, capacities: Sequence[int], at: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Flat indices and values of round ``at``, padded with index -1 and value 0."""
    indices, values = _empty(gradients, rows, capacities)
    places = torch.split(indices, list(capacities))
    parts = torch.split(
        values, [count * prod(each.shape[1:]) for count, each in zip(capacities, gradients, strict=True)]
    )
    for gradient, own, most, place, part in zip(gradients, rows, capacities, places, parts, strict=True):
        sent = own[at * most : (at + 1) * most]
        place[: sent.numel()] = sent.to(torch.int32)
        part.view(most, -1)[: sent.numel()] = gradient.flatten(1)[sent]
    return indices, values


def _empty(
    gradients: Sequence[torch.Tensor], rows: Rows, capacities: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Empty buffers of a round: indices, all -1, and values, all 0."""
    elements = sum(count * prod(each.shape[1:]) for count, each in zip(capacities, gradients, strict=True))
    indices = torch.full((sum(capacities),), -1, dtype=torch.int32, device=rows[0].device)
    return indices, gradients[0].new_zeros(elements)


def _add(
    gradients: Sequence[torch.Tensor], indices: torch.Tensor, values: torch.Tensor, capacities: Sequence[int]
) -> None:
    """Add the rows of a round, from one replica or server, to the gradients."""
    places = torch.split(indices, list(capacities))
    parts = torch.split(
        values, [count * prod(each.shape[1:]) for count, each in zip(capacities, gradients, strict=True)]
    )
    for gradient, most, place, part in zip(gradients, capacities, places, parts, strict=True):
        used = int((place >= 0).sum())
        gradient.index_add_(0, place[:used].to(torch.int64), part.view(most, *gradient.shape[1:])[:used])
