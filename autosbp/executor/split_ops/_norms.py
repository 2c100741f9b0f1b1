"""Norms whose statistics run over split dims: local means and variances are gathered and combined.

Combining means and sums of squared deviations (Chan, Golub and LeVeque 1979) loses no digits if the mean is large, as
sums of squares would. Forward takes one collective, backward one: the sums of the gradient and of its product with the
normalised values, packed.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from autosbp.executor.runtime import Runtime, current
from autosbp.executor.split_ops._base import SplitCall
from autosbp.executor.split_ops._collectives import gather_parts, reduce_parts, statistics_dtype

Axes = tuple[int, ...]
StatisticsUpdate = Callable[[torch.Tensor, torch.Tensor, int], None]


def layer_norm_split(
    x: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    axes: Axes,
) -> torch.Tensor:
    """Layer norm of ``x`` whose normalised dims are split on ``axes``; weight and bias are split in the same way."""
    dims = tuple(range(x.dim() - len(normalized_shape), x.dim()))
    return _normalise(x, _broadcast_view(weight, x), _broadcast_view(bias, x), dims, eps, axes)


def rms_norm_split(
    x: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor | None, eps: float | None, axes: Axes
) -> torch.Tensor:
    """RMS norm of ``x`` whose normalised dims are split on ``axes``; the weight is split in the same way."""
    dims = tuple(range(x.dim() - len(normalized_shape), x.dim()))
    least = torch.finfo(statistics_dtype(x)).eps
    return _normalise(x, _broadcast_view(weight, x), None, dims, least if eps is None else eps, axes, centred=False)


def batch_norm_split(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    axes: Axes,
    update: StatisticsUpdate | None = None,
) -> torch.Tensor:
    """Batch norm in training of ``x`` whose batch or space is split on ``axes``: synchronised statistics.

    ``update`` gets them: mean, biased variance, and the number of values of a channel.
    """
    dims = (0, *range(2, x.dim()))
    shape = (1, -1, *[1] * (x.dim() - 2))
    return _normalise(x, _view(weight, shape), _view(bias, shape), dims, eps, axes, constant=True, update=update)


def group_norm_split(
    x: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    axes: Axes,
) -> torch.Tensor:
    """Group norm of ``x``, which holds ``num_groups`` whole groups and a part of their space, split on ``axes``."""
    grouped = x.reshape(x.shape[0], num_groups, -1, *x.shape[2:])
    shape = (1, num_groups, -1, *[1] * (x.dim() - 2))
    dims = tuple(range(2, grouped.dim()))
    return _normalise(grouped, _view(weight, shape), _view(bias, shape), dims, eps, axes).reshape(x.shape)


def _broadcast_view(weight: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor | None:
    """A view of the weight with all of ``x``'s dims; the weight's own are the last."""
    return None if weight is None else _view(weight, (*[1] * (x.dim() - weight.dim()), *weight.shape))


def _view(weight: torch.Tensor | None, shape: tuple[int, ...]) -> torch.Tensor | None:
    return None if weight is None else weight.view(shape)


def _normalise(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    dims: tuple[int, ...],
    eps: float,
    axes: Axes,
    *,
    centred: bool = True,
    constant: bool = False,
    update: StatisticsUpdate | None = None,
) -> torch.Tensor:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over ``dims``; without ``centred`` the mean is 0.

    Weight and bias have all of ``x``'s dims; ``constant`` ones do not vary along ``dims``.
    """
    constant = constant or weight is None
    apply: Any = _Normalise.apply
    out: torch.Tensor = apply(x, weight, bias, dims, eps, axes, centred, constant, update, current())
    return out


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        dims: tuple[int, ...],
        eps: float,
        axes: Axes,
        centred: bool,
        constant: bool,
        update: StatisticsUpdate | None,
        runtime: Runtime,
    ) -> torch.Tensor:
        mean, variance, out = (_centred if centred else _uncentred)(x.to(statistics_dtype(x)), dims, axes, runtime)
        if update is not None and mean is not None:
            update(mean, variance, _num_values(x, dims, axes, runtime))
        scale = (variance + eps).rsqrt()
        out = out.mul_(scale) if centred else out * scale
        if weight is not None:
            out = out * weight if bias is None else torch.addcmul(bias.to(out.dtype), out, weight.to(out.dtype))
        elif bias is not None:
            out = out + bias
        ctx.save_for_backward(x, weight, mean, scale)
        ctx.dims, ctx.axes, ctx.constant, ctx.runtime = dims, axes, constant, runtime
        ctx.bias = None if bias is None else (bias.shape, bias.dtype)
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, weight, mean, scale = ctx.saved_tensors
        grad = grads[0].to(scale.dtype)
        normal = _standardise(x.to(scale.dtype), mean, scale)
        product = grad * normal
        # A constant weight, as in batch norm, is factored out of the sums.
        if ctx.constant:
            sums = [product.sum(ctx.dims, keepdim=True), grad.sum(ctx.dims, keepdim=True)]
            grad_weight, grad_bias = _weight_gradients(ctx, weight, *sums)
            factor = scale if weight is None else scale * weight
        else:
            grad_weight, grad_bias = _weight_gradients(ctx, weight, product, grad)
            grad, factor = grad * weight, scale
            sums = [product.mul_(weight).sum(ctx.dims, keepdim=True), grad.sum(ctx.dims, keepdim=True)]
        if not ctx.needs_input_grad[0]:
            return None, grad_weight, grad_bias, *[None] * 7
        count = _num_values(x, ctx.dims, ctx.axes, ctx.runtime)
        means = reduce_parts(torch.stack(sums if mean is not None else sums[:1]), ctx.axes, ctx.runtime).div_(count)
        grad_x = normal.mul_(-means[0]).add_(grad)
        if mean is not None:
            grad_x.sub_(means[1])
        return grad_x.mul_(factor).to(x.dtype), grad_weight, grad_bias, *[None] * 7


def _num_values(x: torch.Tensor, dims: tuple[int, ...], axes: Axes, runtime: Runtime) -> int:
    """Number of values over all ranks' ``dims``."""
    return prod(x.shape[dim] for dim in dims) * runtime.mesh.group_size(axes)


def _weight_gradients(
    ctx: Any, weight: torch.Tensor | None, product: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Gradients of weight and bias, summed over broadcast dims."""
    grad_weight = None if weight is None else product.sum_to_size(weight.shape).to(weight.dtype)
    return grad_weight, None if ctx.bias is None else grad.sum_to_size(ctx.bias[0]).to(ctx.bias[1])


def _standardise(x: torch.Tensor, mean: torch.Tensor | None, scale: torch.Tensor) -> torch.Tensor:
    return x * scale if mean is None else (x - mean).mul_(scale)


def _centred(
    x: torch.Tensor, dims: tuple[int, ...], axes: Axes, runtime: Runtime
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean and variance over all ranks' ``dims`` (kept with size 1), and ``x`` minus the mean; one all-gather."""
    own = x.mean(dims, keepdim=True)
    # Two passes are as exact as torch.var_mean, whose CPU kernel takes ten times as long.
    below = x - own
    means, variances = gather_parts(torch.stack((own, below.square().mean(dims, keepdim=True))), axes, runtime).unbind(
        1
    )
    mean = means[0] + (means - means[0]).mean(0)
    return mean, (variances + (means - mean).square()).mean(0), below.add_(own - mean)


def _uncentred(
    x: torch.Tensor, dims: tuple[int, ...], axes: Axes, runtime: Runtime
) -> tuple[None, torch.Tensor, torch.Tensor]:
    """No mean, the mean square over all ranks' ``dims``, and ``x`` itself; one all-reduce."""
    local = x.square().mean(dims, keepdim=True)
    return None, reduce_parts(local, axes, runtime) / runtime.mesh.group_size(axes), x


def layer_norm(call: SplitCall) -> tuple[Any, tuple[Any, ...]]:
    x, shape = call.args[:2]
    weight, bias, eps = call.argument(2), call.argument(3), call.argument(4, 1e-5)
    return layer_norm_split, (x, shape, weight, bias, eps, call.group())


def rms_norm(call: SplitCall) -> tuple[Any, tuple[Any, ...]]:
    x, shape = call.args[:2]
    return rms_norm_split, (x, shape, call.argument(2), call.argument(3), call.group())


def batch_norm(call: SplitCall) -> tuple[Any, tuple[Any, ...]]:
    x, weight, bias, *_, eps, _ = call.args
    return batch_norm_split, (x, weight, bias, eps, call.group())


def group_norm(call: SplitCall) -> tuple[Any, tuple[Any, ...]]:
    """Group norm on a rank's part.

    Whole groups per rank need no communication, only their number; split space (or split channels of a single group)
    needs the statistics of other ranks.
    """
    x, num_groups = call.args[:2]
    weight, bias, eps = call.argument(2), call.argument(3), call.argument(4, 1e-5)
    local = num_groups // call.mesh.group_size(call.group("g"))
    axes = tuple(axis for axis in call.group() if axis not in call.group("g"))
    if axes:
        return group_norm_split, (x, local, weight, bias, eps, axes)
    return torch.ops.aten.group_norm.default, (x, local, weight, bias, eps, call.argument(5, True))
