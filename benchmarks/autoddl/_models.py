"""The models of AutoDDL's section 5, captured."""

from __future__ import annotations

from functools import cache

from autosbp.api import LogicalGraph, capture, capture_hf_config
from autosbp.graph.dtype_cast import cast_floats

TOKENS = 1024
VOCABULARY = 50_304  # GPT-2's, padded to a multiple of 128 as Megatron-LM does


@cache
def vgg13(dtype: str = "float32") -> LogicalGraph:
    """VGG13 at 224 x 224."""
    return cast_floats(capture("zoo:vgg13"), "float32", dtype)


@cache
def transformer(layers: int, width: int, heads: int, dtype: str = "float32") -> LogicalGraph:
    """A GPT-2 of this size, without dropout."""
    config = {
        "model_type": "gpt2", "n_layer": layers, "n_embd": width, "n_head": heads, "n_positions": TOKENS,
        "vocab_size": VOCABULARY, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
    }  # fmt: skip
    return cast_floats(capture_hf_config(config, seq_len=TOKENS), "float32", dtype)
