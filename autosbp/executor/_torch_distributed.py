"""Calls into ``torch.distributed``, under names that do not change between releases.

Torch 2.13 renamed ``all_gather_into_tensor`` and ``reduce_scatter_tensor`` and deprecated the old names; this file
takes whichever exists.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from autosbp.executor.communication_wait import communicating, metered

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_gather(part: torch.Tensor, dim: int, size: int, group: Any) -> torch.Tensor:
    """Concatenate the group's tensors along ``dim``."""
    part = part.contiguous()
    out = part.new_empty((size * part.shape[0], *part.shape[1:]) if part.dim() else (size,))
    with communicating():
        _all_gather(out, part, group=group)
    return out if dim == 0 else torch.cat(out.chunk(size, 0), dim)


def reduce_scatter(full: torch.Tensor, dim: int, size: int, group: Any, op: Any = dist.ReduceOp.SUM) -> torch.Tensor:
    """Sum (or ``op``) the group's tensors and keep this rank's part along ``dim``."""
    source = full.contiguous() if dim == 0 else torch.cat(full.chunk(size, dim), 0)
    part = source.new_empty((source.shape[0] // size, *source.shape[1:]))
    with communicating():
        _reduce_scatter(part, source, op=op, group=group)
    return part


def all_reduce(full: torch.Tensor, group: Any, op: Any = dist.ReduceOp.SUM) -> torch.Tensor:
    """Sum (or ``op``) of the group's tensors, in a new tensor."""
    out = full.contiguous().clone()
    with communicating():
        dist.all_reduce(out, op=op, group=group)
    return out


def all_to_all(full: torch.Tensor, split_dim: int, cat_dim: int, size: int, group: Any) -> torch.Tensor:
    """Split along ``split_dim``, exchange, concatenate along ``cat_dim``."""
    source = torch.cat(full.chunk(size, split_dim), 0) if split_dim else full.contiguous()
    out = torch.empty_like(source)
    with communicating():
        dist.all_to_all_single(out, source, group=group)
    return out if cat_dim == 0 else torch.cat(out.chunk(size, 0), cat_dim)


def exchange(tensor: torch.Tensor, to: int, source: int) -> torch.Tensor:
    """Send a tensor to rank ``to`` and receive one of the same shape from rank ``source``, which may be the same."""
    received = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    send_and_receive([(tensor.contiguous(), to)], [(received, source)])
    return received


def send_and_receive(sends: list[tuple[torch.Tensor, int]], receives: list[tuple[torch.Tensor, int]]) -> None:
    """Send contiguous tensors to ranks and receive others, all at once.

    At most one message in each direction between two ranks. Receives are posted first: Gloo notifies the sender of a
    receive through the queue of outgoing messages, where the notification would wait for a message of our own. An
    exchange would then take the time of both messages, one after the other.
    """
    operations = [dist.P2POp(dist.irecv, tensor, rank) for tensor, rank in receives]
    operations += [dist.P2POp(dist.isend, tensor, rank) for tensor, rank in sends]
    with communicating():
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()


def exchange_messages(
    sends: list[tuple[torch.Tensor, int, int]], receives: list[tuple[torch.Tensor, int, int]], group: Any
) -> None:
    """Send and receive contiguous (tensor, rank, tag) at once; tags tell messages between the same two ranks apart."""
    operations = [dist.P2POp(dist.irecv, tensor, rank, group, tag) for tensor, rank, tag in receives]
    operations += [dist.P2POp(dist.isend, tensor, rank, group, tag) for tensor, rank, tag in sends]
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()


def broadcast(tensor: torch.Tensor, source: int, group: Any) -> None:
    """Broadcast the tensor of process ``source`` to all of the group, in place."""
    with communicating():
        dist.broadcast(tensor, source, group=group)


def start_all_reduce(flat: torch.Tensor, group: Any) -> Any:
    """Start to sum the group's flat tensors in place; returns a handle to ``wait`` for."""
    return metered(dist.all_reduce(flat, group=group, async_op=True))


def start_all_gather(whole: torch.Tensor, part: torch.Tensor, group: Any) -> Any:
    """Start to gather flat tensors into ``whole``, one after another; returns a handle to ``wait`` for."""
    return metered(_all_gather(whole, part, group=group, async_op=True))


def start_reduce_scatter(part: torch.Tensor, whole: torch.Tensor, group: Any) -> Any:
    """Start to sum the group's flat tensors, each rank's part into ``part``; returns a handle to ``wait`` for."""
    return metered(_reduce_scatter(part, whole, group=group, async_op=True))
