"""Face recognition: a ResNet trunk and a margin head over all identities, as InsightFace trains it (OneFlow 6.3.1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from autosbp.zoo.models._resnet import Trunk


class MarginHead(nn.Module):
    """CosFace (arXiv 1801.09414): cosines of features and class weights, less ``margin`` at the label, times ``scale``."""

    def __init__(self, features: int, classes: int, scale: float, margin: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, features).normal_(std=0.01))
        self.scale, self.margin = scale, margin

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """``x`` is (batch, features) and ``labels`` (batch,); returns logits, (batch, classes)."""
        cosines = functional.linear(functional.normalize(x), functional.normalize(self.weight))
        index = labels.unsqueeze(1)
        margins = torch.full_like(index, -self.margin, dtype=cosines.dtype)
        return self.scale * cosines.scatter_add(1, index, margins)


class FaceRecognizer(nn.Module):
    """Classifies images of faces by identity.

    Args:
        blocks, width: arguments of the ResNet ``Trunk``.
        features: width of the embedding, the output of the trained network in use.
        classes: identities in the training set.
        scale, margin: arguments of the ``MarginHead``.
    """

    def __init__(
        self, blocks: Sequence[int], width: int, features: int, classes: int, scale: float = 64.0, margin: float = 0.4
    ) -> None:
        super().__init__()
        self.trunk = Trunk(blocks, width)
        self.embed = nn.Linear(self.trunk.channels, features, bias=False)
        self.norm = nn.BatchNorm1d(features)
        self.head = MarginHead(features, classes, scale, margin)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``x`` is (batch, 3, height, width) and ``labels`` (batch,); returns the cross-entropy and the logits."""
        logits = self.head(self.norm(self.embed(self.trunk(x))), labels)
        return functional.cross_entropy(logits, labels), logits
