"""Small models whose strategies are predicted and timed.

A step over slow links takes a fraction of a second. The shapes are those of AutoDDL section 5: a transformer, an MLP,
the dense end of VGG.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from autosbp.api import capture_hf_config, capture_module
from autosbp.graph.ir import LogicalGraph
from autosbp.zoo.models import MLP


@dataclass(frozen=True)
class Case:
    """A model and its global batch."""

    graph: Callable[[], LogicalGraph]
    batch: int


def _gpt2() -> LogicalGraph:
    config = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 1024, "n_positions": 64, "n_embd": 128,
        "n_layer": 4, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    }  # fmt: skip
    return capture_hf_config(config, 64)


def _dense(name: str, sizes: tuple[int, ...]) -> LogicalGraph:
    inputs = {"x": torch.zeros(4, sizes[0]), "labels": torch.zeros(4, dtype=torch.long)}
    return capture_module(MLP(sizes), inputs, name=name)


CASES: Mapping[str, Case] = {
    "gpt2": Case(_gpt2, 16),
    "mlp": Case(lambda: _dense("mlp", (256, 768, 384, 512, 256, 16)), 1024),
    "vgg-head": Case(lambda: _dense("vgg-head", (1568, 512, 512, 128)), 512),
}
