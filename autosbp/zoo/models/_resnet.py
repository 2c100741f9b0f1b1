"""ResNet with bottleneck blocks (arXiv 1512.03385), stride in the 3 x 3 convolution as in torchvision's "v1.5"."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

EXPANSION = 4


def _convolution(ins: int, outs: int, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution that keeps height and width (apart from its stride), and its batch norm."""
    return nn.Sequential(nn.Conv2d(ins, outs, size, stride=stride, padding=size // 2, bias=False), nn.BatchNorm2d(outs))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions with a shortcut, from ``ins`` to ``EXPANSION * width`` channels."""

    def __init__(self, ins: int, width: int, stride: int) -> None:
        super().__init__()
        outs = EXPANSION * width
        self.reduce = _convolution(ins, width, 1)
        self.middle = _convolution(width, width, 3, stride)
        self.expand = _convolution(width, outs, 1)
        self.shortcut = _convolution(ins, outs, 1, stride) if stride != 1 or ins != outs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = functional.relu(self.middle(functional.relu(self.reduce(x))))
        return functional.relu(self.expand(inner) + self.shortcut(x))


class Trunk(nn.Module):
    """A ResNet without its classifier: (batch, 3, height, width) to (batch, ``channels``).

    Args:
        blocks: number of blocks of each stage; each stage but the first halves height and width.
        width: channels of the stem, and inside the first stage's blocks; each stage doubles it.
    """

    def __init__(self, blocks: Sequence[int], width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(_convolution(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1))
        stages: list[nn.Module] = []
        self.channels = width
        for stage, count in enumerate(blocks):
            inner = width << stage
            for at in range(count):
                stages.append(Bottleneck(self.channels, inner, 2 if stage and not at else 1))
                self.channels = EXPANSION * inner
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.flatten(self.pool(self.stages(self.stem(x))), 1)


class ResNet(nn.Module):
    """An image classifier: ``Trunk`` and one linear layer."""

    def __init__(self, blocks: Sequence[int], width: int, classes: int) -> None:
        super().__init__()
        self.trunk = Trunk(blocks, width)
        self.classifier = nn.Linear(self.trunk.channels, classes)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``x`` is (batch, 3, height, width) and ``labels`` (batch,); returns the cross-entropy and the logits."""
        logits = self.classifier(self.trunk(x))
        return functional.cross_entropy(logits, labels), logits
