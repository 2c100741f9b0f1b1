"""Hugging Face models from a config file: the class is transformers' own, never remote code; no weights are read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from autosbp.errors import InputError, UnsupportedError
from autosbp.graph.ir import LogicalGraph

_MAX_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length")


def capture_hf_config(config: Mapping[str, Any], seq_len: int | None = None, name: str | None = None) -> LogicalGraph:
    """Capture the causal language model that ``config`` describes, its loss included.

    Args:
        config: the content of a ``config.json``; ``model_type`` decides the class, ``dtype`` (or ``torch_dtype``) the
            dtype.
        seq_len: tokens per sequence; by default the config's maximum, at most 1024.
        name: the graph's name; by default the model type.

    Raises:
        InputError: for an unknown model type or a sequence length beyond the config's maximum.
        UnsupportedError: when transformers is not installed, or the model cannot be captured.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import torch
        import transformers
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise UnsupportedError("capturing a Hugging Face model needs the extra: pip install 'autosbp[hf]'") from error
    from autosbp.graph.capture import build_on_meta, capture

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    fields = {key: value for key, value in config.items() if key not in ("auto_map", "transformers_version")}
    model_type = fields.pop("model_type", None)
    if not isinstance(model_type, str):
        raise InputError(
            "config.model_type", model_type, "a Hugging Face model type is expected, such as gpt2 or llama"
        )
    try:
        hf_config = AutoConfig.for_model(model_type, **{**fields, "use_cache": False})
    except (ValueError, KeyError) as error:
        raise InputError(
            "config.model_type", model_type, f"a causal language model is expected ({str(error)[:200]})"
        ) from None
    except Exception as error:  # transformers validates configs with errors of many types
        raise InputError("config", model_type, f"transformers accepts this config ({str(error)[:400]})") from None
    limit = next((int(getattr(hf_config, key)) for key in _MAX_POSITIONS if getattr(hf_config, key, None)), None)
    length = seq_len if seq_len is not None else min(limit or 1024, 1024)
    if length < 2 or (limit is not None and length > limit):
        raise InputError("seq_len", length, f"2 to {limit} is expected")
    dtype_name = str(fields.get("dtype") or fields.get("torch_dtype") or "float32").removeprefix("torch.")
    dtype = {
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
        "float64": torch.float64,
    }.get(dtype_name)
    if dtype is None:
        raise InputError("config.dtype", dtype_name, "float32, float64, bfloat16 or float16 is expected")
    vocabulary = int(getattr(hf_config, "vocab_size", 0))
    try:
        module = build_on_meta(
            lambda: AutoModelForCausalLM.from_config(hf_config, dtype=dtype),  # type: ignore[no-untyped-call]
            dtype,
        )
    except ValueError as error:
        raise InputError(
            "config.model_type", model_type, f"a causal language model is expected ({str(error)[:200]})"
        ) from None
    ids = torch.zeros(4, length, dtype=torch.long, device="meta")
    return capture(
        module,
        {"input_ids": ids, "labels": ids.clone()},
        name=name or model_type,
        input_high={"input_ids": vocabulary, "labels": vocabulary},
        provenance={
            "source": f"transformers {transformers.__version__} {type(module).__name__}",
            "seq_len": str(length),
        },
    )
