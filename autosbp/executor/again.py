"""Runs of ops that backward runs again: forward keeps what they read, not what they make (``sbp.recompute``).

As torch's reentrant checkpoints, but in the runtime's terms: random ops draw what they drew, parameters that are gathered
for each use are gathered for the second run and stay until their gradients have come, and what only this run reads brings
its gradients to the parameters themselves, as soon as they are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autosbp.executor.runtime import Runtime, current


def recomputed(
    program: torch.nn.Module, parameters: Sequence[torch.Tensor], gradients: Sequence[bool], *inputs: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """In a program: what ``program(*parameters, *inputs)`` returns.

    Args:
        program: the run of ops.
        parameters: leaves that it alone brings gradients to.
        gradients: of each result, whether one comes back.
        inputs: all else that it reads.
    """
    apply: Any = _Recomputed.apply
    out: tuple[torch.Tensor, ...] = apply(_ANCHOR, program, tuple(parameters), tuple(gradients), current(), *inputs)
    return out


_ANCHOR = torch.zeros((), requires_grad=True)
"""Makes autograd come back where no input has a gradient, but a parameter has."""


class _Recomputed(torch.autograd.Function):
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
        with runtime.active(), runtime.back_at(ctx.moment), torch.enable_grad():
            with runtime.gathers.again():
                outs = ctx.program(*ctx.parameters, *inputs)
            pairs = [
                (out, grad) for out, grad in zip(outs, grads, strict=True) if grad is not None and out.requires_grad
            ]
            del outs
            if pairs:
                torch.autograd.backward([out for out, _ in pairs], [grad for _, grad in pairs])
        return None, None, None, None, None, *(value.grad for value in inputs)
