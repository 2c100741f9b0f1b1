"""Train your own model on your own data under a plan, in an ordinary PyTorch script.

    autosbp plan examples.train_own_data:factory --cluster local:2x2 --global-batch 16 -o plan.json
    torchrun --nproc-per-node 4 examples/train_own_data.py plan.json

The data is the text of this repository's licence, character by character; the model is a small causal transformer.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import autosbp

TEXT = Path(__file__).parents[1] / "LICENSE"
LENGTH, WIDTH, HEADS, LAYERS, STEPS = 64, 128, 4, 2, 60


class Text(Dataset[dict[str, torch.Tensor]]):
    """Pieces of ``LENGTH`` characters; labels are the next characters."""

    def __init__(self, path: Path) -> None:
        self.bytes = torch.tensor(list(path.read_bytes()))

    def __len__(self) -> int:
        return (len(self.bytes) - 1) // LENGTH

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        piece = self.bytes[at * LENGTH : (at + 1) * LENGTH + 1]
        return {"tokens": piece[:-1], "labels": piece[1:]}


class Block(nn.Module):
    """Pre-norm attention and a two-layer MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query_key_value, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            each.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for each in self.query_key_value(self.attention_norm(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        out: torch.Tensor = x + self.down(F.gelu(self.up(self.mlp_norm(x))))
        return out


class CharacterModel(nn.Module):
    """Next-character model; returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def example() -> dict[str, torch.Tensor]:
    """A batch of two samples, to capture the model with."""
    return {name: torch.zeros(2, LENGTH, dtype=torch.long) for name in ("tokens", "labels")}


def factory() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """The model and its inputs, for ``autosbp plan``."""
    return CharacterModel(), example()


def main() -> None:
    torch.manual_seed(0)
    dataset = Text(TEXT)
    model = autosbp.parallelize(CharacterModel(), sys.argv[1], example=example())
    loader = DataLoader(dataset, batch_sampler=model.batch_sampler(dataset))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    step = 0
    while step < STEPS:
        for batch in loader:
            loss = model(**batch)
            loss.backward()
            model.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            step += 1
            if step % 10 == 0 and torch.distributed.get_rank() == 0:
                sys.stdout.write(f"step {step}: loss {loss.item():.4f}\n")
            if step == STEPS:
                break
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
