"""The models that both sides train: the module that PyTorch runs, and the graph that our side is built from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autosbp.graph.capture import capture
from autosbp.graph.ir import LogicalGraph

SEQ_LEN = 128
_TOKENS: Any = {"vocab_size": 4096, "use_cache": False, "bos_token_id": None, "eos_token_id": None}


@dataclass(frozen=True)
class Model:
    """A model to train.

    Attributes:
        build: creates the module with random weights, which depend only on torch's seed.
        batch: batch size of its inputs.
        blocks: returns the submodules that FSDP shards one by one.
        columns, rows: name suffixes of the linear layers that Megatron splits by output and by input.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[int, torch.Generator], dict[str, torch.Tensor]]
    highs: Mapping[str, int]
    batch: int
    blocks: Callable[[Any], list[nn.Module]]
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()

    def module(self) -> nn.Module:
        torch.manual_seed(0)
        return self.build().train()

    def graph(self, name: str) -> LogicalGraph:
        return capture(self.module(), self.inputs(4, torch.Generator()), name=name, input_high=dict(self.highs))


def _gpt2() -> nn.Module:
    import transformers

    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            **_TOKENS, n_positions=SEQ_LEN, n_embd=256, n_layer=4, n_head=8, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
        )
    )


def _llama() -> nn.Module:
    import transformers

    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **_TOKENS, max_position_embeddings=SEQ_LEN, hidden_size=256, intermediate_size=688, num_hidden_layers=4,
            num_attention_heads=8, num_key_value_heads=4,
        )
    )  # fmt: skip


def _mlp() -> nn.Module:
    from autosbp.zoo.models import MLP

    return MLP((512, 1536, 768, 1024, 512, 16))


def _tokens(batch: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, _TOKENS["vocab_size"], (batch, SEQ_LEN), generator=generator)
    return {"input_ids": ids, "labels": ids.clone()}


def _features(batch: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    labels = torch.randint(0, 16, (batch,), generator=generator)
    return {"x": torch.randn(batch, 512, generator=generator), "labels": labels}


_VOCABULARY = {"input_ids": 4096, "labels": 4096}
MODELS: Mapping[str, Model] = {
    "gpt2": Model(_gpt2, _tokens, _VOCABULARY, 4, lambda module: list(module.transformer.h)),
    "llama": Model(
        _llama, _tokens, _VOCABULARY, 4, lambda module: list(module.model.layers),
        ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), ("o_proj", "down_proj"),
    ),
    "mlp": Model(
        _mlp, _features, {"labels": 16}, 256, lambda module: list(module.layers), ("layers.0", "layers.2"),
        ("layers.1", "layers.3"),
    ),
}  # fmt: skip
