"""Models with a ``torch.autograd.Function`` of their own, whose backward is not the derivative of the forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Tensor = torch.Tensor


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(x)
        return (x * scale).round()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < 1.0), None


class Reverse(torch.autograd.Function):
    """Gradient reversal, which returns its argument."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:  # noqa: ARG004 - the signature of torch
        ctx.width = inputs[0].shape[-1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -0.5 * grad / ctx.width


class Noted(torch.autograd.Function):
    """A linear layer with a scaled backward and a second output without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        ctx.shape = x.shape
        out = x @ weight.t()
        norm = out.abs().amax(-1)
        ctx.mark_non_differentiable(norm)
        return out if bias is None else out + bias, norm

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        flat, rows = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, ctx.shape[-1])
        return (grad @ weight).view(ctx.shape), 2.0 * flat.t() @ rows, flat.sum(0) if ctx.needs_input_grad[2] else None


class Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004 - the signature of torch
        return x.to(torch.float64).floor()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ARG004 - the signature of torch
        return grad * 0.5


straight_through = StraightThrough.apply


class Model(nn.Module):
    def __init__(self, body: Callable[[Model, Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.two, self.body = nn.Linear(12, 24), nn.Linear(24, 12), body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x).square().mean()


def estimated(model: Model, x: Tensor) -> Tensor:
    out: Tensor = model.two(straight_through(model.one(x), 4.0))
    return out


def cast_to_double(model: Model, x: Tensor) -> Tensor:
    out: Tensor = model.two(Cast.apply(4.0 * model.one(x)))
    return out


def reversed_gradient(model: Model, x: Tensor) -> Tensor:
    out: Tensor = model.two(Reverse.apply(model.one(x)).relu())
    return out


def noted(model: Model, x: Tensor) -> Tensor:
    out, norm = Noted.apply(x, model.one.weight, model.one.bias)
    other, _ = Noted.apply(out, model.two.weight, None)
    result: Tensor = (other + model.two.bias) / norm.unsqueeze(-1)
    return result


class Impure(torch.autograd.Function):
    """Refused: its forward pass changes its argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ARG004 - the signature of torch
        return grad


class Random(torch.autograd.Function):
    """Refused: it draws random numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004 - the signature of torch
        return x * torch.rand_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ARG004 - the signature of torch
        return grad


class Branching(torch.autograd.Function):
    """Refused: it depends on values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004 - the signature of torch
        return x if float(x.sum()) > 0 else -x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ARG004 - the signature of torch
        return grad


def factory() -> tuple[nn.Module, dict[str, Tensor]]:
    return Model(estimated), {"x": torch.zeros(4, 3, 12)}
