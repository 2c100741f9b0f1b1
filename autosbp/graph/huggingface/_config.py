"""Convert a config document to transformers' config class, and adapt inference configs to training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autosbp.errors import InputError
from autosbp.utils.resource_limits import memory_limit

_MOST_BYTES = 256 * 2**20
_IGNORED = ("auto_map", "transformers_version", "architectures")
# Layers dropped at random and masks drawn on the host have no fixed graph.
_DISABLED_FIELDS = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop", "apply_spec_augment")


def read_config(config: Mapping[str, Any]) -> Any:
    """The config object; raise ``InputError`` for an unknown model type or fields that its class rejects."""
    from transformers import AutoConfig

    fields = {key: value for key, value in config.items() if key not in _IGNORED}
    model_type = fields.pop("model_type", None)
    if not isinstance(model_type, str):
        raise InputError("config.model_type", model_type, "expected a Hugging Face model type, such as gpt2")
    try:
        with memory_limit(_MOST_BYTES):  # some classes allocate a list as long as a field says
            found = AutoConfig.for_model(model_type, **{**fields, "use_cache": False})
    except MemoryError:
        limit = f"expected a config with lists of at most {_MOST_BYTES >> 20} MiB"
        raise InputError("config", model_type, limit) from None
    except (ValueError, KeyError) as error:
        raise InputError("config.model_type", model_type, f"expected a known model type ({str(error)[:200]})") from None
    except Exception as error:  # transformers validates configs with errors of many types
        raise rejected_config_error(model_type, error) from None
    for part in (found, *_subconfigs(found)):
        part.use_cache = False
        if hasattr(part, "onnx_export"):
            part.onnx_export = True  # the form of attention windows without as_strided
        for name in _DISABLED_FIELDS:
            if getattr(part, name, None):
                setattr(part, name, type(getattr(part, name))(0))
    _set_special_tokens(found)
    return found


def _subconfigs(config: Any) -> list[Any]:
    """Configs nested in a config, such as those of an encoder and a decoder."""
    from transformers import PretrainedConfig

    return [value for value in vars(config).values() if isinstance(value, PretrainedConfig)]


def _set_special_tokens(config: Any) -> None:
    """Set missing special tokens of an encoder-decoder.

    Its decoder input is the labels, shifted right; it starts with a token that some configs leave out.
    """
    if not getattr(config, "is_encoder_decoder", False):
        return
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0
    if getattr(config, "decoder_start_token_id", None) is None:
        start = getattr(config, "bos_token_id", None)
        config.decoder_start_token_id = config.pad_token_id if start is None else start


def rejected_config_error(model_type: str, error: Exception) -> InputError:
    """The error for a config that transformers does not accept."""
    reason = f"{type(error).__name__}: {error}"
    return InputError("config", model_type, f"rejected by transformers ({reason[:400]})")
