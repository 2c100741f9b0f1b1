"""Attention over one rectangle or triangle of queries and keys, as blocks that a log-sum-exp joins (Dao 2023).

``block_forward`` gives a block's output and log-sum-exp; ``block_backward`` its gradients under the log-sum-exp of all
keys. Torch's fused kernel runs where it exists (on CPU, with equal head widths); products of matrices run elsewhere,
at most ``MAX_SCORES`` scores at once. Neither keeps scores for the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch

from autosbp.executor.split_ops._collectives import statistics_dtype

MAX_SCORES = 1 << 26
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


@dataclass(frozen=True, slots=True)
class Block:
    """Queries and keys (start and length) that meet; ``triangle``: query i of the block sees its keys 0 to i."""

    query: tuple[int, int]
    key: tuple[int, int]
    triangle: bool = False


def causal_blocks(ahead: int, queries: int, keys: int) -> Iterator[Block]:
    """The blocks in which query i sees keys 0 to i + ``ahead``: the queries that see all keys, and of the others a
    rectangle and a triangle."""
    low, high = max(0, -ahead), min(queries, max(0, keys - ahead))
    if low < high:
        before = low + ahead
        if before:
            yield Block((low, high - low), (0, before))
        yield Block((low, high - low), (before, high - low), triangle=True)
    if high < queries and keys:
        yield Block((high, queries - high), (0, keys))


def plan_blocks(query: torch.Tensor, key: torch.Tensor, ahead: int | None, *, fused: bool) -> list[Block]:
    """All blocks of a call; ``ahead`` as for ``causal_blocks``, None when every query sees every key."""
    queries, keys = query.shape[-2], key.shape[-2]
    rows = queries if fused else max(1, MAX_SCORES // max(1, prod(query.shape[:-2]) * keys))
    blocks = []
    for start in range(0, queries, rows):
        count = min(rows, queries - start)
        whole = [Block((0, count), (0, keys))]
        for block in whole if ahead is None else causal_blocks(ahead + start, count, keys):
            blocks.append(Block((block.query[0] + start, block.query[1]), block.key, block.triangle))
    return blocks


def has_fused(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, *, mask_gradient: bool
) -> bool:
    """Whether torch's kernel takes these: 4 dims, one width, the same batch, a mask without a gradient."""
    same = query.dim() == 4 and query.shape[-1] == key.shape[-1] == value.shape[-1] and query.shape[0] == key.shape[0]
    known = mask is None or (mask.dim() in (2, 4) and not mask_gradient)
    return query.device.type == "cpu" and same and known


def block_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    triangle: bool,
    scale: float,
    *,
    fused: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp ``[..., q]`` (-inf where a query sees no key); ``mask`` is added to the scores."""
    if fused:
        out, total = _FLASH(query, key, value, 0.0, triangle, attn_mask=mask, scale=scale)
        if mask is not None:
            # The kernel gives 0 for a query that sees no key.
            total = total.masked_fill((mask == -torch.inf).all(-1), -torch.inf)
        return out, total
    scores = _scores(query, key, mask, triangle, scale)
    total = torch.logsumexp(scores, -1)
    weights = scores.sub_(total.masked_fill(total == -torch.inf, 0.0).unsqueeze(-1)).exp_()
    return weights.to(value.dtype) @ _repeated(value, query), total


def block_backward(
    grad: torch.Tensor,
    product: torch.Tensor,
    total: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    triangle: bool,
    scale: float,
    *,
    fused: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key, value and scores (of the scores: none from the fused kernel).

    ``total`` is the log-sum-exp over all keys of all blocks and ranks (inf where there is none), ``product`` the sum
    over the width of gradient times whole output; both ``[..., q]``.
    """
    if fused:
        own = (query, key, value, _output_with(grad, product), total)
        grads = _FLASH_BACKWARD(grad, *own, 0.0, triangle, attn_mask=mask, scale=scale)
        return (*grads, grad.new_empty(0))
    weights = _scores(query, key, mask, triangle, scale).sub_(total.unsqueeze(-1)).exp_()
    grad_value = weights.to(grad.dtype).transpose(-1, -2) @ grad
    grad_scores = (grad @ _repeated(value, query).transpose(-1, -2)).to(weights.dtype)
    grad_scores = grad_scores.sub_(product.unsqueeze(-1)).mul_(weights)
    inner = (grad_scores * scale).to(query.dtype)
    grad_key = inner.transpose(-1, -2) @ query
    return inner @ _repeated(key, query), _gathered(grad_key, key), _gathered(grad_value, value), grad_scores


def _output_with(grad: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
    """An output along the gradient with this product: the kernel takes an output for its product alone."""
    unit = grad / grad.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(grad.dtype).tiny)
    along = product.unsqueeze(-1) / (grad * unit).sum(-1, keepdim=True).to(product.dtype)
    return (unit * along.nan_to_num(0.0, 0.0, 0.0)).to(grad.dtype)


def _scores(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, triangle: bool, scale: float
) -> torch.Tensor:
    scores = (query @ _repeated(key, query).transpose(-1, -2)).to(statistics_dtype(query)) * scale
    if mask is not None:
        scores += mask
    if triangle:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu_(1)
        scores.masked_fill_(hidden, -torch.inf)
    return scores


def _repeated(source: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Keys or values with a head for each head of the queries; other leading dims broadcast by themselves."""
    if source.dim() < 3 or source.shape[-3] in (1, query.shape[-3]):
        return source
    return source.repeat_interleave(query.shape[-3] // source.shape[-3], -3)


def _gathered(grad: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """The gradient of what ``_repeated`` and broadcasting repeated."""
    if grad.shape == source.shape:
        return grad
    if source.shape[-3] not in (1, grad.shape[-3]):
        grad = grad.reshape(*grad.shape[:-3], source.shape[-3], -1, *grad.shape[-2:]).sum(-3)
    return grad.sum_to_size(source.shape)
