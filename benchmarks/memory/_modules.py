"""Small modules beyond transformers whose memory is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F  # noqa: N812 - as in torch's documentation
from torch import Tensor, nn

CLASSES = 16
WIDTH = 64
TOKENS = 32


class Mixture(nn.Module):
    """A mixture of experts in which every expert computes the tokens that its gate weights, as small models write it."""

    def __init__(self, experts: int = 4, chosen: int = 2) -> None:
        super().__init__()
        self.gate, self.chosen = nn.Linear(WIDTH, experts), chosen
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(experts)
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        weights, places = self.gate(x).softmax(-1).topk(self.chosen)
        shares = torch.zeros_like(x[..., : len(self.experts)]).scatter(
            -1, places, weights / weights.sum(-1, keepdim=True)
        )
        mixed = torch.zeros_like(x)
        for at, expert in enumerate(self.experts):
            mixed = mixed + shares[..., at : at + 1] * expert(x)
        return F.cross_entropy(self.head(mixed.mean(1)), y)


class Statistics(nn.Module):
    """Pooling by mean and standard deviation, as in speaker recognition."""

    def __init__(self) -> None:
        super().__init__()
        self.frames, self.head = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(8 * WIDTH, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        frames = self.frames(x).relu()
        return F.cross_entropy(self.head(torch.cat((frames.mean(1), frames.std(1)), -1)), y)


class Sorted(nn.Module):
    """Pooling of sorted features, as in graph networks' sort pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH * 4, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        values = self.features(x).tanh().sort(1, descending=True).values
        return F.cross_entropy(self.head(values[:, :4].flatten(1)), y)


class Messages(nn.Module):
    """Messages between the nodes of a fixed graph, summed with ``index_add``."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.head = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, CLASSES)
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("sources", torch.randint(TOKENS, (4 * TOKENS,), generator=generator))
        self.register_buffer("targets", torch.randint(TOKENS, (4 * TOKENS,), generator=generator))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        sent = self.message(x.index_select(1, self.sources))
        received = torch.zeros_like(x).repeat(1, 1, 2).index_add(1, self.targets, sent)
        return F.cross_entropy(self.head(received.relu().mean(1)), y)


class Convolutions(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 32), (32, 64), (64, 64)):
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), norm(after), nn.ReLU()]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(64, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.layers(x).mean((2, 3))), y)


def _tokens(batch: int) -> dict[str, Tensor]:
    return {"x": torch.randn(batch, TOKENS, WIDTH), "y": torch.zeros(batch, dtype=torch.long)}


def _images(batch: int) -> dict[str, Tensor]:
    return {"x": torch.randn(batch, 3, 16, 16), "y": torch.zeros(batch, dtype=torch.long)}


MODULES: Mapping[str, tuple[Callable[[], nn.Module], Callable[[int], dict[str, Tensor]]]] = {
    "mixture": (Mixture, _tokens),
    "std": (Statistics, _tokens),
    "sort": (Sorted, _tokens),
    "index_add": (Messages, _tokens),
    "group norm": (lambda: Convolutions(lambda channels: nn.GroupNorm(8, channels)), _images),
    "batch norm": (lambda: Convolutions(nn.BatchNorm2d), _images),
}
