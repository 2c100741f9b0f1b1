"""The small models and the strategies whose memory is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autosbp.api import LogicalGraph, PlanOptions, capture_hf_config, load_cluster, make_plan
from autosbp.costmodel.recompute import with_full_checkpointing
from autosbp.graph.capture import capture
from autosbp.graph_sources import load_model
from autosbp.plan.plan import Strategy
from autosbp.testing.strategy_samples import sample_strategies
from benchmarks.lowering._strategies import data_parallel, stored_split, tensor_parallel
from benchmarks.memory._modules import MODULES

RANKS = 4
BATCH = 16
_LLAMA = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 512, "max_position_embeddings": 64,
}  # fmt: skip
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 3, "n_embd": 128, "n_head": 4,
        "n_positions": 64, "vocab_size": 512, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
    },
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **_LLAMA},
    "bert": {
        "architectures": ["BertForPreTraining"], "model_type": "bert", "hidden_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 512, "max_position_embeddings": 64,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    },
    "t5": {
        "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": 128, "d_kv": 32, "d_ff": 256,
        "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "vocab_size": 512, "dropout_rate": 0.0,
        "decoder_start_token_id": 0, "pad_token_id": 0,
    },
    "vit": {
        "architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 256, "image_size": 32, "patch_size": 8, "num_channels": 3,
        "num_labels": 8, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    },
    "mixtral": {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **_LLAMA,
        "num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True,
    },
    "gqa": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **_LLAMA, "num_key_value_heads": 2},
}  # fmt: skip
SIZES: Mapping[str, Mapping[str, int]] = {"vit": {}}
ZOO = {"moe": "zoo:moe-small", "resnet": "zoo:resnet50-small", "vgg": "zoo:vgg13-small", "mlp": "zoo:mlp-small"}
MODELS = (*CONFIGS, *ZOO, *MODULES)
BATCHES = {"group norm": 72}
"""Microbatches other than ``BATCH``: 18 images on each rank."""
MESSAGE_BYTES = 2**18


def graph_of(name: str) -> LogicalGraph:
    """Graph of a model by name."""
    if name in MODULES:
        build, inputs = MODULES[name]
        return capture(build(), inputs(4), name=name)
    return (
        load_model(ZOO[name]) if name in ZOO else capture_hf_config(CONFIGS[name], **SIZES.get(name, {"seq_len": 32}))
    )


def strategies_of(graph: LogicalGraph, samples: int, batch: int = BATCH) -> dict[str, Strategy]:
    """Strategies by label.

    Data parallel, parameters gathered once per step and in each use, gradient accumulation, Megatron's tensor
    parallelism, the planner's choice, and ``samples`` random ones.
    """
    cluster = load_cluster("local:2x2")
    parallel = data_parallel(graph, RANKS, batch)
    found = {
        "data parallel": parallel,
        "data parallel, 4 microbatches": replace(parallel, global_batch=4 * batch),
        "gathered once a step": stored_split(graph, RANKS, batch, "step", MESSAGE_BYTES),
        "gathered in each use": stored_split(graph, RANKS, batch, "use", MESSAGE_BYTES),
        "gathered in each use, 4 microbatches": replace(
            stored_split(graph, RANKS, batch, "use", MESSAGE_BYTES), global_batch=4 * batch
        ),
    }
    for data in (2, 1):
        label = f"Megatron-like, {data} x {RANKS // data}"
        found[label] = tensor_parallel(graph, "local:2x2", 3 - data, batch)
    found["planned"] = make_plan(graph, cluster, None, PlanOptions(global_batch=batch, stages=1)).strategy
    bound = graph.bind(**dict.fromkeys(graph.symbols, batch))
    for label in ("data parallel", "gathered in each use, 4 microbatches", "Megatron-like, 2 x 2"):
        found[f"{label}, recomputed"] = with_full_checkpointing(bound, found[label])
    sampled = sample_strategies(graph, cluster, samples, global_batch=2 * batch, micro_batch=batch, seed=1)
    return found | {f"sample {at}": strategy for at, strategy in enumerate(sampled)}
