"""Linear ops whose weight gradients are computed later than their input gradients, as zero-bubble pipelines want it.

Backward puts what is left to do on ``Runtime.deferred``, a list of calls; whoever made that list runs them. A gradient is
added to the parameter itself, so only parameters that an op reads as they are stored can be deferred.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from autosbp.executor.runtime import current


def deferred_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``linear`` [b..., k] x [n, k] + [n] -> [b..., n]; ``weight`` and ``bias`` are leaves."""
    apply: Any = _Linear.apply
    out: torch.Tensor = apply(x, weight, bias, current().deferred)
    return out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, calls: list[Callable[[], None]]
    ) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias, ctx.calls = weight, bias, calls
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        ctx.calls.append(partial(_add_gradients, x.detach(), grads[0], ctx.weight, ctx.bias))
        return (grads[0] @ ctx.weight.detach() if ctx.needs_input_grad[0] else None), None, None, None


def _add_gradients(x: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    rows = grad.reshape(-1, grad.shape[-1])
    if weight.requires_grad:
        _add(weight, rows.t() @ x.reshape(-1, x.shape[-1]))
    if bias is not None and bias.requires_grad:
        _add(bias, rows.sum(0))


def _add(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
