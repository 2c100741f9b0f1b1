"""The collectives inside split implementations: small tensors, each recorded as it is issued."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from autosbp.executor import _dist
from autosbp.executor.runtime import Runtime


def gather_parts(part: torch.Tensor, axes: tuple[int, ...], runtime: Runtime) -> torch.Tensor:
    """The tensors of all ranks of the group, stacked in front: ``[ranks, ...]``."""
    group, ranks = runtime.group(axes)
    stacked = _dist.all_gather(part.unsqueeze(0), 0, len(ranks), group)
    runtime.record("all_gather", stacked, ranks)
    return stacked


def add_parts(part: torch.Tensor, axes: tuple[int, ...], runtime: Runtime, op: Any = dist.ReduceOp.SUM) -> torch.Tensor:
    """The sum (or ``op``) of the tensors of all ranks of the group."""
    group, ranks = runtime.group(axes)
    runtime.record("all_reduce", part, ranks)
    return _dist.all_reduce(part, group, op)


def statistics_dtype(x: torch.Tensor) -> torch.dtype:
    """Means and sums of half-precision tensors are kept in float32, as torch's own kernels do."""
    return torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype
