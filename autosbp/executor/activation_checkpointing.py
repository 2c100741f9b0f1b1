"""Activation checkpointing: save segment inputs, recompute in backward (``program.activation_checkpointing``).

Like torch's reentrant checkpoints, with additions for the runtime: random ops draw the same numbers again; parameters
that are gathered for each use are gathered for the recomputation and stay until their gradients have come; and
gradients of parameters that only this segment reads are accumulated directly, as soon as they exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autosbp.executor.runtime import Runtime, current


def checkpoint(
    program: torch.nn.Module, parameters: Sequence[torch.Tensor], gradients: Sequence[bool], *inputs: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """In a program: the result of ``program(*parameters, *inputs)``, recomputed in backward.

    Args:
        program: the ops of the segment.
        parameters: leaves whose gradients come from this segment only.
        gradients: for each result, whether a gradient comes back.
        inputs: all other values that the segment reads.
    """
    apply: Any = _Checkpoint.apply
    out: tuple[torch.Tensor, ...] = apply(_ANCHOR, program, tuple(parameters), tuple(gradients), current(), *inputs)
    return out


_ANCHOR = torch.zeros((), requires_grad=True)
"""Makes autograd call backward if no input requires a gradient, but a parameter does."""


class _Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        _: torch.Tensor,
        program: torch.nn.Module,
        parameters: tuple[torch.Tensor, ...],
        gradients: tuple[bool, ...],
        runtime: Runtime,
        *inputs: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.program, ctx.parameters, ctx.gradients, ctx.runtime = program, parameters, gradients, runtime
        ctx.moment = runtime.moment
        ctx.flows = tuple(value.requires_grad for value in inputs)
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)
        outs: tuple[torch.Tensor, ...] = program(*parameters, *inputs)
        ctx.mark_non_differentiable(*(out for out, flows in zip(outs, gradients, strict=True) if not flows))
        return outs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        runtime: Runtime = ctx.runtime
        inputs = [
            value.detach().requires_grad_(flows)
            for value, flows in zip(ctx.saved_tensors, ctx.flows, strict=True)
        ]  # fmt: skip
        with runtime.active(), runtime.with_state(ctx.moment), torch.enable_grad():
            with runtime.gathers.again():
                outs = ctx.program(*ctx.parameters, *inputs)
            pairs = [
                (out, grad) for out, grad in zip(outs, grads, strict=True) if grad is not None and out.requires_grad
            ]
            del outs
            if pairs:
                torch.autograd.backward([out for out, _ in pairs], [grad for _, grad in pairs])
        return None, None, None, None, None, *(value.grad for value in inputs)
