"""Linear ops with deferred weight gradients (wgrad), for zero-bubble pipelines.

Backward appends the deferred work to ``Runtime.deferred``, a list of calls; the owner of the list runs them. A gradient
is added to the parameter itself, or to the gather that made the copy which the op read
(``executor.parameter_gathers``). ``program.deferred_wgrad`` decides which ops may defer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from autosbp.executor.parameter_gathers import deferred_gradient_sink
from autosbp.executor.parameter_shards import gradient_dtype
from autosbp.executor.runtime import current

Sink = Callable[[torch.Tensor], None]


def deferred_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``linear`` [b..., k] x [n, k] + [n] -> [b..., n]; ``weight`` and ``bias`` are leaves or gathered copies."""
    apply: Any = _Linear.apply
    sinks = _sink(weight), None if bias is None else _sink(bias)
    own_bias = None if bias is None else bias.detach()
    out: torch.Tensor = apply(_ANCHOR, x, weight.detach(), own_bias, sinks, current().deferred_wgrads)
    return out


_ANCHOR = torch.zeros((), requires_grad=True)
"""Makes autograd call backward even if ``x`` requires no gradient, since the weights do."""


def _sink(parameter: torch.Tensor) -> Sink | None:
    """The function that takes the parameter's gradient; None if it needs none."""
    if not parameter.requires_grad:
        return None
    return partial(_add, parameter) if parameter.is_leaf else deferred_gradient_sink(parameter)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        _: torch.Tensor,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        sinks: tuple[Sink | None, Sink | None],
        calls: list[Callable[[], None]],
    ) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.sinks, ctx.calls = weight, sinks, calls
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        ctx.calls.append(partial(_compute_wgrad, x.detach(), grads[0], ctx.sinks))
        return None, (grads[0] @ ctx.weight if ctx.needs_input_grad[1] else None), None, None, None, None


def _compute_wgrad(x: torch.Tensor, grad: torch.Tensor, sinks: tuple[Sink | None, Sink | None]) -> None:
    rows = grad.reshape(-1, grad.shape[-1])
    of_weight, of_bias = sinks
    if of_weight is not None:
        of_weight(rows.t() @ x.reshape(-1, x.shape[-1]))
    if of_bias is not None:
        of_bias(rows.sum(0))


def _add(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    gradient = gradient.to(gradient_dtype(parameter))
    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
