"""Log-softmax over a dim split on some axes: local maxima and sums are reduced (OneFlow section 6.3.1)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from autosbp.executor import _dist
from autosbp.executor.runtime import Runtime, current
from autosbp.executor.split_ops._base import SplitCall


def log_softmax_split(x: torch.Tensor, dim: int, axes: tuple[int, ...]) -> torch.Tensor:
    """Log-softmax of ``x`` whose ``dim`` is split on ``axes``."""
    out: torch.Tensor = _LogSoftmaxSplit.apply(x, dim, axes, current())  # type: ignore[no-untyped-call]
    return out


class _LogSoftmaxSplit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, axes: tuple[int, ...], runtime: Runtime) -> torch.Tensor:
        group, ranks = runtime.group(axes)
        top = x.amax(dim, keepdim=True)
        runtime.record("all_reduce", top, ranks)
        top = _dist.all_reduce(top, group, dist.ReduceOp.MAX)
        shifted = x - top
        total = shifted.exp().sum(dim, keepdim=True)
        runtime.record("all_reduce", total, ranks)
        out = shifted - _dist.all_reduce(total, group).log()
        ctx.save_for_backward(out)
        ctx.dim, ctx.group, ctx.ranks, ctx.runtime = dim, group, ranks, runtime
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (out,) = ctx.saved_tensors
        total = grads[0].sum(ctx.dim, keepdim=True)
        ctx.runtime.record("all_reduce", total, ctx.ranks)
        total = _dist.all_reduce(total, ctx.group)
        return grads[0] - out.exp() * total, None, None, None


def log_softmax(call: SplitCall) -> tuple[Any, tuple[Any, ...]]:
    return log_softmax_split, (call.args[0], call.args[1], call.one_group())
