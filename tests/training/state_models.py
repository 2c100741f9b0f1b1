"""Models and steps of the tests of a module's state, as they run on ranks and on one device."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import get_ema_multi_avg_fn

from tests.training.user_model import LanguageModel

BATCH, STEPS, EMA = 8, 3, 0.8


class ConvNet(nn.Module):
    """A classifier of images with batch norm; ``shared``: one layer of it is called twice."""

    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(3 if at == 0 else 8, 8, 3, padding=1) for at in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8, momentum=0.3 - 0.05 * at) for at in range(4))
        self.last = None if shared else nn.BatchNorm2d(8)
        self.out = nn.Linear(8, 4)
        self.register_buffer("scale", torch.tensor(2.0))
        self.unread = nn.Parameter(torch.ones(3))

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = pixels
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.relu(norm(convolution(x)))
        x = self.norms[0](x) if self.last is None else self.last(x)
        return F.cross_entropy(self.out(x.mean((2, 3))) * self.scale, labels)


def conv_net(dtype: str, *, shared: bool = False) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    inputs = {
        "pixels": torch.zeros(2, 3, 6, 6, dtype=getattr(torch, dtype)),
        "labels": torch.zeros(2, dtype=torch.long),
    }
    return ConvNet(shared=shared).to(getattr(torch, dtype)), inputs


def language_model(dtype: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    from tests.training.user_model import example

    torch.manual_seed(2)
    return LanguageModel().to(getattr(torch, dtype)), example()


MODELS = {
    "conv-net": conv_net,
    "conv-net with a shared norm": partial(conv_net, shared=True),
    "language-model": language_model,
}


def batch(model: str, step: int, dtype: str) -> dict[str, torch.Tensor]:
    dice = torch.Generator().manual_seed(step)
    if model != "language-model":
        pixels = 3 + torch.randn(BATCH, 3, 6, 6, generator=dice, dtype=torch.float64)
        return {"pixels": pixels.to(getattr(torch, dtype)), "labels": torch.randint(4, (BATCH,), generator=dice)}
    tokens = torch.randint(64, (BATCH, 17), generator=dice)
    return {"tokens": tokens[:, :-1], "labels": tokens[:, 1:]}


class AverageWeights:
    """The moving average of weights, by torch's own function."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = list(parameters)
        self.average = [each.detach().clone() for each in self.parameters]
        self._update = get_ema_multi_avg_fn(EMA)

    def update(self) -> None:
        self._update(self.average, [each.detach() for each in self.parameters], 0)
