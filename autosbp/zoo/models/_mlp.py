"""The multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional


class MLP(nn.Module):
    """Linear layers with ReLU between them, from ``sizes[0]`` features to ``sizes[-1]`` classes."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(one, two) for one, two in zip(sizes[:-1], sizes[1:], strict=True))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``x`` is (batch, features) and ``labels`` (batch,); returns the loss and the logits."""
        for layer in self.layers[:-1]:
            x = functional.relu(layer(x))
        logits = self.layers[-1](x)
        return functional.cross_entropy(logits, labels), logits
