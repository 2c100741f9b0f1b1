"""A model made of a user's own ops (``library``), captured as a user would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from autosbp.api import capture_module
from autosbp.graph.dtype_cast import cast_floats
from autosbp.graph.ir import LogicalGraph
from tests.discovery import library

VOCABULARY, WIDTH, HIDDEN, HEADS, SEQ = 24, 24, 48, 4, 6


class Shop(nn.Module):
    """An embedding, rotary positions, a gated layer, optionally an op that nothing can split, and a head."""

    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.mixes = mixes
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        angles = torch.arange(SEQ)[:, None] / 10.0 ** torch.arange(WIDTH // HEADS // 2)[None]
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        x = x + library.rotary(x, self.cos, self.sin, HEADS)
        x = x + self.down(library.swiglu(x, self.gate.weight, self.up.weight))
        x = library.sort_mix(x) if self.mixes else x
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


@dataclass(frozen=True)
class Example:
    """What ``autosbp.graph.user_modules`` takes."""

    module: nn.Module
    example_inputs: Mapping[str, torch.Tensor]
    input_high: Mapping[str, int]


def mixing_shop() -> Example:
    """With the op that nothing can split."""
    ids = torch.zeros(4, SEQ, dtype=torch.int64)
    return Example(Shop(mixes=True), {"ids": ids, "labels": ids}, {"ids": VOCABULARY, "labels": VOCABULARY})


@cache
def shop(mixes: bool = False) -> LogicalGraph:
    """Captured, with the layouts of its ops discovered, in float64."""
    ids = torch.zeros(4, SEQ, dtype=torch.int64)
    high = {"ids": VOCABULARY, "labels": VOCABULARY}
    graph = capture_module(Shop(mixes), {"ids": ids, "labels": ids}, name="shop", input_high=high)
    return cast_floats(graph, "float32", "float64")
