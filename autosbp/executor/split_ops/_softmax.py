"""Softmax, log-softmax and log-sum-exp over a split dim: local maxima and sums are combined (OneFlow section 6.3.1).

The paper reduces maxima, then sums of exponentials relative to the global maximum. Here every rank sums relative to its
own maximum, so one all-gather of both numbers per row replaces two all-reduces.
"""

from __future__ import annotations

from typing import Any

import torch

from autosbp.executor.runtime import Runtime, current
from autosbp.executor.split_ops._base import SplitCall
from autosbp.executor.split_ops._collectives import gather_parts, reduce_parts, statistics_dtype


def log_softmax_split(
    x: torch.Tensor, dim: int, axes: tuple[int, ...], dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Log-softmax of ``x``, cast to ``dtype`` first, whose ``dim`` is split on ``axes``."""
    return _softmax(x, dim, axes, dtype, log=True)


def softmax_split(x: torch.Tensor, dim: int, axes: tuple[int, ...], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Softmax of ``x``, cast to ``dtype`` first, whose ``dim`` is split on ``axes``."""
    return _softmax(x, dim, axes, dtype, log=False)


def _softmax(x: torch.Tensor, dim: int, axes: tuple[int, ...], dtype: torch.dtype | None, *, log: bool) -> torch.Tensor:
    source = x if dtype is None else x.to(dtype)
    out: torch.Tensor = _Softmax.apply(source, dim, axes, log, current())  # type: ignore[no-untyped-call]
    return out


def logsumexp_split(x: torch.Tensor, dims: tuple[int, ...], keepdim: bool, axes: tuple[int, ...]) -> torch.Tensor:
    """``logsumexp`` of ``x`` whose ``dims`` are split on ``axes``; whole on every rank (output I)."""
    out: torch.Tensor = _LogSumExp.apply(x, dims, axes, current())  # type: ignore[no-untyped-call]
    return out if keepdim else out.squeeze(dims)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, axes: tuple[int, ...], log: bool, runtime: Runtime) -> Any:
        source = x.to(statistics_dtype(x))
        own = source.amax(dim, keepdim=True)
        # If all values are -inf, subtract 0, so that the sum is 0 and not NaN.
        below = source - own.masked_fill(own == -torch.inf, 0.0)
        sums = below.exp_().sum(dim, keepdim=True)
        tops, sums = gather_parts(torch.stack((own, sums)), axes, runtime).unbind(1)
        top = tops.amax(0)
        total = ((tops - top).exp_() * sums).sum(0)
        if log:
            torch.sub(source, top, out=below).sub_(total.log_())
        else:
            below.mul_((own - top).exp_().div_(total))
        out = below.to(x.dtype)
        ctx.save_for_backward(out)
        ctx.dim, ctx.axes, ctx.log, ctx.runtime = dim, axes, log, runtime
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (out,) = ctx.saved_tensors
        grad = grads[0]
        weighted = grad if ctx.log else grad * out
        total = weighted.sum(ctx.dim, keepdim=True, dtype=statistics_dtype(out))
        total = reduce_parts(total, ctx.axes, ctx.runtime)
        result = grad - out.exp() * total if ctx.log else weighted - out * total
        return result.to(out.dtype), None, None, None, None


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dims: tuple[int, ...], axes: tuple[int, ...], runtime: Runtime) -> Any:
        local = torch.logsumexp(x.to(statistics_dtype(x)), dims, keepdim=True)
        out = torch.logsumexp(gather_parts(local, axes, runtime), 0)
        ctx.save_for_backward(x, out)
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, out = ctx.saved_tensors
        # A row of -inf has no gradient, as in torch.
        shift = out.masked_fill(out == -torch.inf, 0)
        return (grads[0] * (x - shift).exp_()).to(x.dtype), None, None, None


def log_softmax(call: SplitCall) -> tuple[Any, tuple[Any, ...]]:
    return log_softmax_split, _softmax_arguments(call)


def softmax(call: SplitCall) -> tuple[Any, tuple[Any, ...]]:
    return softmax_split, _softmax_arguments(call)


def _softmax_arguments(call: SplitCall) -> tuple[Any, ...]:
    x, dim, *dtype = call.args
    return (x, dim, call.group(), *dtype)


def logsumexp(call: SplitCall) -> tuple[Any, tuple[Any, ...]]:
    x, dims = call.args[:2]
    keepdim = len(call.args) > 2 and bool(call.args[2])
    return logsumexp_split, (x, tuple(dims), keepdim, call.group())
