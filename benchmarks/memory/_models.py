"""The models, small, and the strategies whose memory is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autosbp.api import LogicalGraph, PlanOptions, capture_hf_config, load_cluster, make_plan
from autosbp.costmodel.recompute import recomputing
from autosbp.plan import Strategy
from autosbp.search.sampling import sample_strategies
from autosbp.sources import load_model
from benchmarks.lowering._strategies import data_parallel, stored_split, tensor_parallel

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
}  # fmt: skip
SIZES: Mapping[str, Mapping[str, int]] = {"vit": {}}
ZOO = {"moe": "zoo:moe-small", "resnet": "zoo:resnet50-small", "vgg": "zoo:vgg13-small", "mlp": "zoo:mlp-small"}
MODELS = (*CONFIGS, *ZOO)
MESSAGE_BYTES = 2**18


def graph_of(name: str) -> LogicalGraph:
    """A model by name."""
    return (
        load_model(ZOO[name]) if name in ZOO else capture_hf_config(CONFIGS[name], **SIZES.get(name, {"seq_len": 32}))
    )


def strategies_of(graph: LogicalGraph, samples: int) -> dict[str, Strategy]:
    """Data parallel, parameters gathered once a step and in each use, gradients accumulated, tensor parallel as Megatron,
    the planner's, and ``samples`` random ones."""
    cluster = load_cluster("local:2x2")
    parallel = data_parallel(graph, RANKS, BATCH)
    found = {
        "data parallel": parallel,
        "data parallel, 4 microbatches": replace(parallel, global_batch=4 * BATCH),
        "gathered once a step": stored_split(graph, RANKS, BATCH, "step", MESSAGE_BYTES),
        "gathered in each use": stored_split(graph, RANKS, BATCH, "use", MESSAGE_BYTES),
        "gathered in each use, 4 microbatches": replace(
            stored_split(graph, RANKS, BATCH, "use", MESSAGE_BYTES), global_batch=4 * BATCH
        ),
    }
    for data in (2, 1):
        label = f"Megatron-like, {data} x {RANKS // data}"
        found[label] = tensor_parallel(graph, "local:2x2", 3 - data, BATCH)
    found["planned"] = make_plan(graph, cluster, None, PlanOptions(global_batch=BATCH, stages=1)).strategy
    bound = graph.bind(**dict.fromkeys(graph.symbols, BATCH))
    for label in ("data parallel", "gathered in each use, 4 microbatches", "Megatron-like, 2 x 2"):
        found[f"{label}, recomputed"] = recomputing(bound, found[label])
    sampled = sample_strategies(graph, cluster, samples, global_batch=2 * BATCH, micro_batch=BATCH, seed=1)
    return found | {f"sample {at}": strategy for at, strategy in enumerate(sampled)}
