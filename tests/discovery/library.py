"""A user's library of custom ops, ``shop::...``, with gradients: what nobody wrote rules for."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import silu

Tensor = torch.Tensor


def with_gradient(op: Any, formula: Any) -> Any:
    """Give a custom op the gradient of ``formula``, a composition of ops that have one."""

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*(value for value in inputs if isinstance(value, Tensor)))
        ctx.inputs = tuple(None if isinstance(value, Tensor) else value for value in inputs)

    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        saved = iter(ctx.saved_tensors)
        values = [next(saved) if value is None else value for value in ctx.inputs]
        with torch.enable_grad():
            leaves = [
                value.detach().requires_grad_() if isinstance(value, Tensor) and value.is_floating_point() else value
                for value in values
            ]
            outs = formula(*leaves)
        tracked = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
        found = iter(torch.autograd.grad(outs, tracked, grads, allow_unused=True))
        return tuple(next(found) if isinstance(leaf, Tensor) and leaf.requires_grad else None for leaf in leaves)

    op.register_autograd(backward, setup_context=setup)
    return op


def _swiglu(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return silu(x @ gate.t()) * (x @ up.t())


@torch.library.custom_op("shop::swiglu", mutates_args=())
def swiglu(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    """A gated linear layer in one op: ``b... k, n k, n k -> b... n``; not linear in k."""
    return _swiglu(x, gate, up)


@swiglu.register_fake
def _(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], gate.shape[0])


def _rotary(x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    batch, seq, width = x.shape
    split = x.view(batch, seq, heads, width // heads)
    one, two = split.chunk(2, -1)
    c, s = cos[:, None, :], sin[:, None, :]
    return torch.cat((one * c - two * s, two * c + one * s), -1).reshape(batch, seq, width)


@torch.library.custom_op("shop::rotary", mutates_args=())
def rotary(x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    """Rotary positions of packed heads: the width may be split by heads, of which there are then fewer."""
    return _rotary(x, cos, sin, heads)


@rotary.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    return torch.empty_like(x)


def _sort_mix(x: Tensor) -> Tensor:
    """Every value weighs the sorted ones: no part of it can be made from a part of the input."""
    flat = x.reshape(-1)
    return (flat.sort().values.cumsum(0) * flat.tanh()).view(x.shape)


@torch.library.custom_op("shop::sort_mix", mutates_args=())
def sort_mix(x: Tensor) -> Tensor:
    return _sort_mix(x)


@sort_mix.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _tile(x: Tensor, shape: list[int]) -> Tensor:
    return x[:, None, :].expand(shape) * 2.0


@torch.library.custom_op("shop::tile", mutates_args=())
def tile(x: Tensor, shape: list[int]) -> Tensor:
    """``b d -> b t d`` with the result's shape as an argument."""
    return _tile(x, shape).clone()


@tile.register_fake
def _(x: Tensor, shape: list[int]) -> Tensor:
    return x.new_empty(shape)


def _grouped(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    pieces, start = [], 0
    for weight, end in zip(weights, ends.tolist(), strict=True):
        pieces.append(rows[start:end] @ weight)
        start = max(start, end)
    return torch.cat([*pieces, rows.new_zeros(rows.shape[0] - start, weights.shape[2])])


@torch.library.custom_op("shop::grouped", mutates_args=())
def grouped(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Rows sorted by expert, each group times its expert's matrix; ``ends`` are where the groups end."""
    return _grouped(rows, weights, ends)


@grouped.register_fake
def _(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], weights.shape[2])


@torch.library.custom_op("shop::jitter", mutates_args=())
def jitter(x: Tensor) -> Tensor:
    """Random."""
    return x + torch.randn_like(x)


@jitter.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _distinct(x: Tensor) -> Tensor:
    if x.numel() and x.unique().numel() < x.numel():
        raise ValueError("values that differ are expected")
    return x * 2.0


@torch.library.custom_op("shop::distinct", mutates_args=())
def distinct(x: Tensor) -> Tensor:
    """An op that takes some values only."""
    return _distinct(x)


@distinct.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


_FORMULAS = (
    (swiglu, _swiglu),
    (rotary, _rotary),
    (sort_mix, _sort_mix),
    (tile, _tile),
    (grouped, _grouped),
    (distinct, _distinct),
)
for _op, _formula in _FORMULAS:
    with_gradient(_op, _formula)
jitter.register_autograd(lambda _ctx, grad: grad)
