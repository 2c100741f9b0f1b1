"""The calls into ``torch.distributed``, under names that do not change between releases.

2.13 renamed ``all_gather_into_tensor`` and ``reduce_scatter_tensor`` and deprecated the old names; this file knows.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_gather(part: torch.Tensor, dim: int, size: int, group: Any) -> torch.Tensor:
    """Concatenate the group's tensors along ``dim``."""
    part = part.contiguous()
    out = part.new_empty((size * part.shape[0], *part.shape[1:]) if part.dim() else (size,))
    _all_gather(out, part, group=group)
    return out if dim == 0 else torch.cat(out.chunk(size, 0), dim)


def reduce_scatter(full: torch.Tensor, dim: int, size: int, group: Any) -> torch.Tensor:
    """Sum the group's tensors and keep this rank's part along ``dim``."""
    source = full.contiguous() if dim == 0 else torch.cat(full.chunk(size, dim), 0)
    part = source.new_empty((source.shape[0] // size, *source.shape[1:]))
    _reduce_scatter(part, source, group=group)
    return part


def all_reduce(full: torch.Tensor, group: Any, op: Any = dist.ReduceOp.SUM) -> torch.Tensor:
    """Sum (or ``op``) of the group's tensors, in a new tensor."""
    out = full.contiguous().clone()
    dist.all_reduce(out, op=op, group=group)
    return out


def all_to_all(full: torch.Tensor, split_dim: int, cat_dim: int, size: int, group: Any) -> torch.Tensor:
    """Split along ``split_dim``, exchange, concatenate along ``cat_dim``."""
    source = torch.cat(full.chunk(size, split_dim), 0) if split_dim else full.contiguous()
    out = torch.empty_like(source)
    dist.all_to_all_single(out, source, group=group)
    return out if cat_dim == 0 else torch.cat(out.chunk(size, 0), cat_dim)


def exchange(tensor: torch.Tensor, partner: int) -> torch.Tensor:
    """Swap tensors with another rank."""
    send = tensor.contiguous()
    received = torch.empty_like(send)
    operations = [dist.P2POp(dist.isend, send, partner), dist.P2POp(dist.irecv, received, partner)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return received
