"""Parts of models that branch on values."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def raises_if(y: Tensor, labels: Tensor) -> Tensor:
    if labels is not None and labels.max() >= 4:
        raise ValueError("labels below 4 are expected")
    return y


def raises_else(y: Tensor, labels: Tensor) -> Tensor:
    if not (labels < 4).all() or labels.max().item() > 9:
        message = "labels"
        raise ValueError(f"{message} below 4 are expected")
    return y


def asserts(y: Tensor, labels: Tensor) -> Tensor:
    assert (labels >= 0).all(), "labels of at least 0 are expected"
    return y


def constant_branch(y: Tensor, _: Tensor) -> Tensor:
    mask = torch.ones(y.shape[0], 4)
    mask[:, 0] = 0.0
    y = y * 2.0 if (mask > 1).any().item() else y * 3.0
    return y * mask if bool(torch.zeros_like(y).sum() == 0) else y


def two_ways(y: Tensor, labels: Tensor) -> Tensor:
    return y * 2.0 if labels.max() > 2 else y
