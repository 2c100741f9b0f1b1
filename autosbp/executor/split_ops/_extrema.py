"""Maxima and minima over split dims; one collective forward and none backward.

Ties share the gradient as in torch: evenly, or only the first gets it if the op returns an index.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from autosbp.executor.runtime import Runtime, current
from autosbp.executor.split_ops._base import SplitCall
from autosbp.executor.split_ops._collectives import gather_parts, reduce_parts, statistics_dtype


def extremum_split(
    x: torch.Tensor, dims: tuple[int, ...], keepdim: bool, largest: bool, axes: tuple[int, ...]
) -> torch.Tensor:
    """``amax`` (or ``amin``) over ``dims``, split on ``axes``, of a tensor without a gradient."""
    local = x.amax(dims, keepdim) if largest else x.amin(dims, keepdim)
    return reduce_parts(local, axes, current(), dist.ReduceOp.MAX if largest else dist.ReduceOp.MIN)


def shared_extremum_split(
    x: torch.Tensor, dims: tuple[int, ...], keepdim: bool, largest: bool, axes: tuple[int, ...]
) -> torch.Tensor:
    """``amax`` (or ``amin``) over ``dims``, split on ``axes``; ties share the gradient evenly."""
    out: torch.Tensor = _Extremum.apply(x, dims, largest, axes, current())  # type: ignore[no-untyped-call]
    return out if keepdim else out.squeeze(dims)


class _Extremum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, dims: tuple[int, ...], largest: bool, axes: tuple[int, ...], runtime: Runtime
    ) -> torch.Tensor:
        local = x.amax(dims, True) if largest else x.amin(dims, True)
        dtype = statistics_dtype(x)
        count = (x == local).sum(dims, keepdim=True, dtype=dtype)
        values, counts = gather_parts(torch.stack((local.to(dtype), count)), axes, runtime).unbind(1)
        best = values.amax(0) if largest else values.amin(0)
        out = best.to(x.dtype)
        ctx.save_for_backward(x, out, counts.mul_(values == best).sum(0))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, out, count = ctx.saved_tensors
        return (grads[0] / count).to(x.dtype) * (x == out), None, None, None, None


def indexed_extremum_split(
    x: torch.Tensor, dim: int, keepdim: bool, largest: bool, start: int, axes: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and indices of ``max`` (or ``min``) along ``dim``, split on ``axes``.

    ``start`` is the index at which this rank's part begins.
    """
    values, index = _IndexedExtremum.apply(x, dim, largest, start, axes, current())  # type: ignore[no-untyped-call]
    return (values, index) if keepdim else (values.squeeze(dim), index.squeeze(dim))


class _IndexedExtremum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, dim: int, largest: bool, start: int, axes: tuple[int, ...], runtime: Runtime
    ) -> tuple[torch.Tensor, torch.Tensor]:
        local, place = x.max(dim, keepdim=True) if largest else x.min(dim, keepdim=True)
        values, places = _gather_pairs(local, place + start, axes, runtime)
        first = (values.argmax(0) if largest else values.argmin(0)).unsqueeze(0)
        value, index = values.gather(0, first).squeeze(0), places.gather(0, first).squeeze(0)
        ctx.save_for_backward(index)
        ctx.mark_non_differentiable(index)
        ctx.shape, ctx.dim, ctx.start = x.shape, dim, start
        return value, index

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (index,) = ctx.saved_tensors
        local = index - ctx.start
        outside = (local < 0) | (local >= ctx.shape[ctx.dim])
        grad = grads[0].new_zeros(ctx.shape)
        grad.scatter_(ctx.dim, local.masked_fill(outside, 0), grads[0].masked_fill(outside, 0))
        return grad, None, None, None, None, None


def _gather_pairs(
    values: torch.Tensor, places: torch.Tensor, axes: tuple[int, ...], runtime: Runtime
) -> tuple[torch.Tensor, torch.Tensor]:
    """Every rank's values and int64 places, ``[ranks, ...]`` each, sent as bytes in one all-gather."""
    parts = [each.contiguous().view(-1).view(torch.uint8) for each in (places, values)]
    gathered = gather_parts(torch.cat(parts), axes, runtime)
    cut = len(parts[0])
    found = [each.contiguous().view(-1) for each in (gathered[:, :cut], gathered[:, cut:])]
    shape = (gathered.shape[0], *values.shape)
    return found[1].view(values.dtype).view(shape), found[0].view(places.dtype).view(shape)


def extremum(call: SplitCall) -> tuple[Any, tuple[Any, ...]]:
    """``amax``, ``amin``, and ``max`` or ``min`` of a whole tensor."""
    x, ref = call.args[0], next(iter(call.node.refs()))
    dims = tuple(call.argument(1) or range(len(call.local_input(0))))
    function = shared_extremum_split if call.graph.has_gradient(ref) else extremum_split
    return function, (x, dims, bool(call.argument(2, False)), "max" in call.node.op, call.group())


def indexed_extremum(call: SplitCall) -> tuple[Any, tuple[Any, ...]]:
    shape = call.local_input(0)
    dim = call.args[1] % len(shape)
    keepdim, largest = bool(call.argument(2, False)), "max" in call.node.op
    return indexed_extremum_split, (call.args[0], dim, keepdim, largest, call.start(0, dim), call.group())
