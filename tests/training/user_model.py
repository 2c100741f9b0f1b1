"""A user's own language model: tied embeddings, dropout, a loss of its own."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, LENGTH = 64, 32, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(F.gelu(self.up(self.norm(x))))
        return out


class LanguageModel(nn.Module):
    def __init__(self, *, tied: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.embedding(tokens))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten(), ignore_index=-100)


def example(samples: int = 2) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(samples, LENGTH, dtype=torch.long) for name in ("tokens", "labels")}


class Sentences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random sentences, of which some labels do not count."""

    def __init__(self, count: int) -> None:
        dice = torch.Generator().manual_seed(3)
        self.tokens = torch.randint(VOCABULARY, (count, LENGTH + 1), generator=dice)
        self.ignored = torch.rand(count, LENGTH, generator=dice) < torch.rand(count, 1, generator=dice)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        labels = self.tokens[at, 1:].masked_fill(self.ignored[at], -100)
        return {"tokens": self.tokens[at, :-1], "labels": labels}
