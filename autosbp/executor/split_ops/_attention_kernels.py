"""Attention kernels for one block: torch's fused kernels if they accept the tensors, else matrix products.

None saves scores for backward. ``forward(query, key, value, mask, triangle, scale)`` returns the output and its
log-sum-exp ``[..., q]`` (-inf if a query sees no key). ``backward(grad, product, total, query, key, value, mask,
triangle, scale)`` returns the gradients of query, key, value and of the scores (empty from fused kernels). ``mask`` is
added to the scores; with ``triangle`` query i sees keys 0 to i; ``total`` is the log-sum-exp over the keys of all
blocks and ranks (inf if there is none), ``product`` the sum over the width of gradient times whole output, both ``[...,
q]``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from autosbp.executor.split_ops._collectives import statistics_dtype

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class AttentionKernel:
    """Forward and backward of one kernel; ``fused`` kernels hold no scores at all."""

    forward: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    backward: Callable[..., Gradients]
    fused: bool


def choose_kernel(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, *, mask_gradient: bool
) -> AttentionKernel:
    """The kernel for these tensors.

    Fused kernels need 4 dims, equal widths, the same batch, and no mask with a gradient; on GPUs no mask at all.
    """
    if query.dim() != 4 or not query.shape[-1] == key.shape[-1] == value.shape[-1] or query.shape[0] != key.shape[0]:
        return MATMUL_KERNEL
    if query.device.type == "cpu" and (mask is None or (mask.dim() in (2, 4) and not mask_gradient)):
        return FLASH_CPU
    if query.device.type == "cuda" and mask is None and _has_flash(query, key, value):
        return FLASH_CUDA
    return MATMUL_KERNEL


def _has_flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    grouped = key.shape[1] != query.shape[1]
    parameters = torch.backends.cuda.SDPAParams(query, key, value, None, 0.0, False, grouped)
    # scaled_dot_product_attention pads other widths before it calls the kernel.
    return query.shape[-1] % 8 == 0 and torch.backends.cuda.can_use_flash_attention(parameters)


def _cpu_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, triangle: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    op: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    out, total = op(query, key, value, 0.0, triangle, attn_mask=mask, scale=scale)
    if mask is not None:
        # The kernel returns 0 for a query that sees no key.
        total = total.masked_fill((mask == -torch.inf).all(-1), -torch.inf)
    return out, total


def _cpu_backward(
    grad: torch.Tensor,
    product: torch.Tensor,
    total: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    triangle: bool,
    scale: float,
) -> Gradients:
    op: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    out = _output_with(grad, product)
    grads = op(grad, query, key, value, out, total, 0.0, triangle, attn_mask=mask, scale=scale)
    return (*grads, grad.new_empty(0))


def _cuda_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _mask: None, triangle: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    op: Any = torch.ops.aten._scaled_dot_product_flash_attention.default
    out, total, *_ = op(query, key, value, 0.0, triangle, False, scale=scale)
    return out, total


def _cuda_backward(
    grad: torch.Tensor,
    product: torch.Tensor,
    total: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: None,
    triangle: bool,
    scale: float,
) -> Gradients:
    op: Any = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
    out, lengths = _output_with(grad, product), (query.shape[-2], key.shape[-2])
    # Without dropout the generator's state is not read.
    state = [torch.zeros(shape, dtype=torch.uint64, device=grad.device) for shape in ((2,), ())]
    total = total.contiguous()
    grads = op(grad, query, key, value, out, total, None, None, *lengths, 0.0, triangle, *state, scale=scale)
    return (*grads, grad.new_empty(0))


def _output_with(grad: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
    """An output parallel to the gradient with this product; kernels use the output only to compute the product."""
    unit = grad / grad.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(grad.dtype).tiny)
    along = product.unsqueeze(-1) / (grad * unit).sum(-1, keepdim=True).to(product.dtype)
    return (unit * along.nan_to_num(0.0, 0.0, 0.0)).to(grad.dtype)


def _products_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, triangle: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = _scores(query, key, mask, triangle, scale)
    total = torch.logsumexp(scores, -1)
    weights = scores.sub_(total.masked_fill(total == -torch.inf, 0.0).unsqueeze(-1)).exp_()
    return weights.to(value.dtype) @ _repeated(value, query), total


def _products_backward(
    grad: torch.Tensor,
    product: torch.Tensor,
    total: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    triangle: bool,
    scale: float,
) -> Gradients:
    weights = _scores(query, key, mask, triangle, scale).sub_(total.unsqueeze(-1)).exp_()
    grad_value = weights.to(grad.dtype).transpose(-1, -2) @ grad
    grad_scores = (grad @ _repeated(value, query).transpose(-1, -2)).to(weights.dtype)
    grad_scores = grad_scores.sub_(product.unsqueeze(-1)).mul_(weights)
    inner = (grad_scores * scale).to(query.dtype)
    grad_key = inner.transpose(-1, -2) @ query
    return inner @ _repeated(key, query), _sum_repeated(grad_key, key), _sum_repeated(grad_value, value), grad_scores


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
    """Keys or values repeated for each query head; other leading dims broadcast by themselves."""
    if source.dim() < 3 or source.shape[-3] in (1, query.shape[-3]):
        return source
    return source.repeat_interleave(query.shape[-3] // source.shape[-3], -3)


def _sum_repeated(grad: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """The gradient of ``source``, summed over what ``_repeated`` and broadcasting repeated."""
    if grad.shape == source.shape:
        return grad
    if source.shape[-3] not in (1, grad.shape[-3]):
        grad = grad.reshape(*grad.shape[:-3], source.shape[-3], -1, *grad.shape[-2:]).sum(-3)
    return grad.sum_to_size(source.shape)


MATMUL_KERNEL = AttentionKernel(_products_forward, _products_backward, fused=False)
FLASH_CPU = AttentionKernel(_cpu_forward, _cpu_backward, fused=True)
FLASH_CUDA = AttentionKernel(_cuda_forward, _cuda_backward, fused=True)
