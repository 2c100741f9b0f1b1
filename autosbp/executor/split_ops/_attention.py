"""Attention with split keys, or causal attention with split queries: blocks combined by log-sum-exp.

Every rank attends to its own keys; one all-gather of the ranks' log-sum-exps scales its output to a term of the sum
(output P). Backward recomputes the weights, like the fused op, and reduces one number per query. Saved for backward:
query, key, value, the output and the log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import torch

from autosbp.executor.runtime import Runtime, current
from autosbp.executor.split_ops._attention_blocks import AttentionBlock, plan_blocks
from autosbp.executor.split_ops._attention_kernels import choose_kernel
from autosbp.executor.split_ops._base import SplitCall
from autosbp.executor.split_ops._collectives import gather_parts, reduce_parts, statistics_dtype


def attention_split(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    ahead: int | None,
    scale: float | None,
    axes: tuple[int, ...],
) -> torch.Tensor:
    """Attention of local queries to local keys, which ``axes`` split.

    Args:
        mask: a boolean mask is True for visible keys, any other is added to the scores.
        ahead: None unless causal; query i of this rank sees its keys 0 to i + ``ahead``.
        scale: factor of the scores, by default 1 / sqrt(width).
    """
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill_(~mask, -torch.inf)
    factor = 1 / sqrt(query.shape[-1]) if scale is None else scale
    out: torch.Tensor = _Attention.apply(query, key, value, mask, ahead, factor, axes, current())  # type: ignore[no-untyped-call]
    return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        ahead: int | None,
        scale: float,
        axes: tuple[int, ...],
        runtime: Runtime,
    ) -> torch.Tensor:
        kernel = choose_kernel(query, key, value, mask, mask_gradient=ctx.needs_input_grad[3])
        blocks = plan_blocks(query, key, ahead, fused=kernel.fused)
        parts = [
            kernel.forward(*_block_inputs(block, query, key, value, mask), block.triangle, scale) for block in blocks
        ]
        total = query.new_full(query.shape[:-1], -torch.inf, dtype=statistics_dtype(query))
        for block, (_, own) in zip(blocks, parts, strict=True):
            rows = total.narrow(-1, *block.query)
            rows.copy_(torch.logaddexp(rows, own))
        if axes:
            total = torch.logsumexp(gather_parts(total, axes, runtime), 0)
        # Infinite for a query that sees no key: all its weights are then 0, here and in backward.
        total.masked_fill_(total == -torch.inf, torch.inf)
        weighted = [
            (block.query, part * (own - total.narrow(-1, *block.query)).exp_().unsqueeze(-1))
            for block, (part, own) in zip(blocks, parts, strict=True)
        ]
        out = _sum_at_spans(weighted, (*query.shape[:-1], value.shape[-1]), total).to(query.dtype)
        ctx.save_for_backward(query, key, value, mask, out, total)
        ctx.blocks, ctx.scale, ctx.kernel, ctx.axes, ctx.runtime = blocks, scale, kernel, axes, runtime
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        query, key, value, mask, out, total = ctx.saved_tensors
        grad = grads[0]
        product = (grad.to(total.dtype) * out).sum(-1)
        if ctx.axes and any(ctx.needs_input_grad[at] for at in (0, 1, 3)):
            product = reduce_parts(product, ctx.axes, ctx.runtime)
        grad_mask = torch.zeros_like(mask) if ctx.needs_input_grad[3] else None
        found = []
        for block in ctx.blocks:
            *parts, scores = ctx.kernel.backward(
                grad.narrow(-2, *block.query),
                product.narrow(-1, *block.query),
                total.narrow(-1, *block.query),
                *_block_inputs(block, query, key, value, mask),
                block.triangle,
                ctx.scale,
            )
            found.append(parts)
            if grad_mask is not None:
                part = _cut_mask(block, grad_mask)
                part.add_(scores.sum_to_size(part.shape))
        spans = [(block.query, block.key, block.key) for block in ctx.blocks]
        sums = [
            _sum_at_spans([(span[at], parts[at]) for span, parts in zip(spans, found, strict=True)], whole.shape, whole)
            for at, whole in enumerate((query, key, value))
        ]
        return (*sums, grad_mask, None, None, None, None)


def _sum_at_spans(
    parts: list[tuple[tuple[int, int], torch.Tensor]], shape: Sequence[int], like: torch.Tensor
) -> torch.Tensor:
    """Sum of parts, each at its span (start and length) of the last dim but one, in zeros like ``like``."""
    if len(parts) == 1 and parts[0][1].shape == tuple(shape):
        return parts[0][1]
    whole = like.new_zeros(shape)
    for span, part in parts:
        whole.narrow(-2, *span).add_(part)
    return whole


def _block_inputs(
    block: AttentionBlock, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    keys, values = (each.narrow(-2, *block.key) for each in (key, value))
    return query.narrow(-2, *block.query), keys, values, None if mask is None else _cut_mask(block, mask)


def _cut_mask(block: AttentionBlock, mask: torch.Tensor) -> torch.Tensor:
    """The block's part of a mask; a dim of size 1 is broadcast."""
    for dim, span in ((-2, block.query), (-1, block.key)):
        if mask.dim() >= -dim and mask.shape[dim] != 1:
            mask = mask.narrow(dim, *span)
    return mask


def attention(call: SplitCall) -> tuple[Any, tuple[Any, ...]]:
    query, key, value = call.args[:3]
    ahead = call.start(0, len(call.local_input(0)) - 2) - call.start(1, len(call.local_input(1)) - 2)
    causal = bool(call.argument(5, False))
    scale = call.kwargs.get("scale", call.argument(6))
    arguments = (query, key, value, call.argument(3), ahead if causal else None, scale, call.group("k"))
    return attention_split, arguments
