"""Collectives inside split implementations: small tensors, each recorded when issued."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from autosbp.executor import _torch_distributed
from autosbp.executor.runtime import Runtime


def gather_parts(part: torch.Tensor, axes: tuple[int, ...], runtime: Runtime) -> torch.Tensor:
    """The tensors of all ranks of the group, stacked in front: ``[ranks, ...]``."""
    group, ranks = runtime.group(axes)
    stacked = _torch_distributed.all_gather(part.unsqueeze(0), 0, len(ranks), group)
    runtime.record("all_gather", stacked, ranks)
    return stacked


def reduce_parts(
    part: torch.Tensor, axes: tuple[int, ...], runtime: Runtime, op: Any = dist.ReduceOp.SUM
) -> torch.Tensor:
    """The sum (or ``op``) of the tensors of all ranks of the group."""
    group, ranks = runtime.group(axes)
    runtime.record("all_reduce", part, ranks)
    return _torch_distributed.all_reduce(part, group, op)


def statistics_dtype(x: torch.Tensor) -> torch.dtype:
    """Dtype of means and sums: float32 for half-precision tensors, as in torch's own kernels."""
    return torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype
