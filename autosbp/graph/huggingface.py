"""Hugging Face models from a config file: the class is transformers' own, never remote code; no weights are read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from autosbp.errors import InputError, UnsupportedError
from autosbp.graph.ir import FLOATS, LogicalGraph

DEFAULT_SEQ_LEN = 1024
_MAX_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length")


def capture_hf_config(config: Mapping[str, Any], seq_len: int | None = None, name: str | None = None) -> LogicalGraph:
    """Capture the causal language model that ``config`` describes, its loss included.

    Args:
        config: the content of a ``config.json``; ``model_type`` decides the class, ``dtype`` (or ``torch_dtype``) the
            dtype.
        seq_len: tokens per sequence; by default the config's maximum, at most ``DEFAULT_SEQ_LEN``.
        name: the graph's name; by default the model type.

    Raises:
        InputError: for an unknown model type or a sequence length beyond the config's maximum.
        UnsupportedError: when transformers is not installed, or the model cannot be captured.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import torch
        import transformers
    except ImportError as error:
        raise UnsupportedError("capturing a Hugging Face model needs the extra: pip install 'autosbp[hf]'") from error
    from autosbp.graph.capture import capture

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    hf_config = _read(config)
    length = _length(hf_config, seq_len)
    module = _build(hf_config, _dtype(config))
    vocabulary = int(getattr(hf_config, "vocab_size", 0))
    if vocabulary < 1:
        raise InputError("config.vocab_size", vocabulary, "a positive vocabulary is expected")
    ids = torch.zeros(4, length, dtype=torch.long, device="meta")
    return capture(
        module,
        {"input_ids": ids, "labels": ids.clone()},
        name=name or hf_config.model_type,
        input_high={"input_ids": vocabulary, "labels": vocabulary},
        provenance={
            "source": f"transformers {transformers.__version__} {type(module).__name__}",
            "seq_len": str(length),
        },
    )


def _read(config: Mapping[str, Any]) -> Any:
    """The config as transformers' own class for its model type."""
    from transformers import AutoConfig

    fields = {key: value for key, value in config.items() if key not in ("auto_map", "transformers_version")}
    model_type = fields.pop("model_type", None)
    if not isinstance(model_type, str):
        raise InputError("config.model_type", model_type, "a Hugging Face model type is expected, such as gpt2")
    try:
        return AutoConfig.for_model(model_type, **{**fields, "use_cache": False})
    except (ValueError, KeyError) as error:
        raise _no_language_model(model_type, error) from None
    except Exception as error:  # transformers validates configs with errors of many types
        raise _refused(model_type, error) from None


def _build(hf_config: Any, dtype_name: str) -> Any:
    """The model with its parameters on the meta device."""
    import torch
    from transformers import AutoModelForCausalLM

    from autosbp.graph.capture import build_on_meta

    dtype = getattr(torch, dtype_name)
    try:
        return build_on_meta(
            lambda: AutoModelForCausalLM.from_config(hf_config, dtype=dtype),  # type: ignore[no-untyped-call]
            dtype,
        )
    except Exception as error:  # modules check their sizes with errors of many types
        if "Unrecognized configuration class" in str(error):
            raise _no_language_model(hf_config.model_type, "transformers has none of this type") from None
        raise _refused(hf_config.model_type, error) from error


def _length(hf_config: Any, seq_len: int | None) -> int:
    limit = next((int(getattr(hf_config, key)) for key in _MAX_POSITIONS if getattr(hf_config, key, None)), None)
    length = seq_len if seq_len is not None else min(limit or DEFAULT_SEQ_LEN, DEFAULT_SEQ_LEN)
    if type(length) is not int or length < 2 or (limit is not None and length > limit):
        raise InputError("seq_len", length, f"an integer in [2, {limit or 'any'}] is expected")
    return length


def _dtype(config: Mapping[str, Any]) -> str:
    name = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in FLOATS:
        raise InputError("config.dtype", name, f"one of {', '.join(sorted(FLOATS))} is expected")
    return name


def _no_language_model(model_type: str, reason: object) -> InputError:
    return InputError("config.model_type", model_type, f"a causal language model is expected ({str(reason)[:200]})")


def _refused(model_type: str, error: Exception) -> InputError:
    reason = f"{type(error).__name__}: {error}"
    return InputError("config", model_type, f"a config that transformers accepts is expected ({reason[:400]})")
