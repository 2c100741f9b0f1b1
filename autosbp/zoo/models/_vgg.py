"""The VGG convolutional network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional


class VGG(nn.Module):
    """VGG (arXiv 1409.1556): stages of 3 x 3 convolutions, each followed by a max pool, and three linear layers.

    Args:
        widths: the filters of each convolution, stage by stage.
        pooled: height and width of the last stage's output after average pooling.
        hidden: width of the two hidden linear layers.
        classes: number of classes.
        dropout: probability in the two hidden linear layers.
    """

    def __init__(
        self, widths: Sequence[Sequence[int]], pooled: int, hidden: int, classes: int, dropout: float = 0.5
    ) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        channels = 3
        for stage in widths:
            for filters in stage:
                stages += [nn.Conv2d(channels, filters, kernel_size=3, padding=1), nn.ReLU()]
                channels = filters
            stages.append(nn.MaxPool2d(kernel_size=2, stride=2))
        self.features = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(pooled)
        self.classifier = nn.Sequential(
            nn.Linear(channels * pooled * pooled, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``x`` is (batch, 3, height, width) and ``labels`` (batch,); returns the loss and the logits."""
        logits = self.classifier(torch.flatten(self.pool(self.features(x)), 1))
        return functional.cross_entropy(logits, labels), logits
