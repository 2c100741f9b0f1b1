"""Scaled-down Hugging Face configs, one per kind of model, and the sizes that their inputs are captured with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LLAMA = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 64,
}  # fmt: skip
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

CONFIGS: Mapping[str, dict[str, Any]] = {
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4,
        "n_positions": 64, "vocab_size": 256, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
    },
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **_LLAMA},
    "phi3": {
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", **_LLAMA, "original_max_position_embeddings": 64,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attention_dropout": 0.0,
    },
    "mixtral": {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **_LLAMA,
        "num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True,
    },
    "bert": {
        "architectures": ["BertForPreTraining"], "model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 256, "max_position_embeddings": 64, **_NO_DROPOUT,
    },
    "t5": {
        "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 96,
        "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "vocab_size": 256, "dropout_rate": 0.0,
        "decoder_start_token_id": 0, "pad_token_id": 0,
    },
    "vit": {
        "architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 96, "image_size": 32, "patch_size": 8, "num_channels": 3,
        "num_labels": 8, **_NO_DROPOUT,
    },
    "whisper": {
        "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "d_model": 64,
        "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "num_mel_bins": 16, "max_source_positions": 16,
        "max_target_positions": 32, "vocab_size": 256, "dropout": 0.0, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2, "decoder_start_token_id": 3, "begin_suppress_tokens": None, "suppress_tokens": None,
    },
    "resnet": {
        "architectures": ["ResNetForImageClassification"], "model_type": "resnet", "depths": [1, 2],
        "hidden_sizes": [32, 64], "embedding_size": 16, "layer_type": "bottleneck", "num_labels": 8,
    },
}  # fmt: skip

SIZES: Mapping[str, dict[str, int]] = {"resnet": {"image_size": 32}, "vit": {}, "whisper": {"seq_len": 16}}
"""Keyword arguments of ``capture_hf_config``; other models take a sequence of 32 tokens."""

ZOO = ("vgg13-small",)
