"""A config document as transformers' own class, with what training needs and inference configs leave out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autosbp.errors import InputError
from autosbp.limits import more_memory

_MOST_BYTES = 256 * 2**20
_IGNORED = ("auto_map", "transformers_version", "architectures")
# Layers that are dropped at random, and masks drawn on the host, have no fixed graph.
_OFF = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop", "apply_spec_augment")


def read_config(config: Mapping[str, Any]) -> Any:
    """The config object; ``InputError`` for an unknown model type or fields that its class refuses."""
    from transformers import AutoConfig

    from autosbp.graph.huggingface import refused

    fields = {key: value for key, value in config.items() if key not in _IGNORED}
    model_type = fields.pop("model_type", None)
    if not isinstance(model_type, str):
        raise InputError("config.model_type", model_type, "a Hugging Face model type is expected, such as gpt2")
    try:
        with more_memory(_MOST_BYTES):  # some classes make a list as long as a number says
            found = AutoConfig.for_model(model_type, **{**fields, "use_cache": False})
    except MemoryError:
        limit = f"a config whose lists take at most {_MOST_BYTES >> 20} MiB is expected"
        raise InputError("config", model_type, limit) from None
    except (ValueError, KeyError) as error:
        raise InputError("config.model_type", model_type, f"a known type is expected ({str(error)[:200]})") from None
    except Exception as error:  # transformers validates configs with errors of many types
        raise refused(model_type, error) from None
    for part in (found, *_parts(found)):
        part.use_cache = False
        for name in _OFF:
            if getattr(part, name, None):
                setattr(part, name, type(getattr(part, name))(0))
    _set_special_tokens(found)
    return found


def _parts(config: Any) -> list[Any]:
    """Configs within a config, such as those of an encoder and a decoder."""
    from transformers import PretrainedConfig

    return [value for value in vars(config).values() if isinstance(value, PretrainedConfig)]


def _set_special_tokens(config: Any) -> None:
    """Labels are shifted right to make a decoder's input, which starts with a token that some configs leave out."""
    if not getattr(config, "is_encoder_decoder", False):
        return
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0
    if getattr(config, "decoder_start_token_id", None) is None:
        start = getattr(config, "bos_token_id", None)
        config.decoder_start_token_id = config.pad_token_id if start is None else start
