"""Sizes of a model's inputs (tokens, pixels, audio samples), from the user's options and the config."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from autosbp.errors import InputError, UnsupportedError

DEFAULT_SEQ_LEN = 1024
"""Tokens of a sequence for a config that states no maximum."""
DEFAULT_IMAGE_SIZE = 224
AUDIO_SAMPLES = 16_000
_MAX_POSITIONS = (
    "max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_target_positions", "max_seq_len",
)  # fmt: skip
_VISION, _AUDIO = ("vision_config", "encoder"), ("audio_config", "encoder_config", "encoder")


@dataclass(frozen=True, slots=True)
class RequestedSizes:
    """Sizes that the user asked for; None means the config's."""

    seq_len: int | None
    image_size: int | None


def set_image_size(config: Any, image_size: int | None) -> None:
    """Set the image size in the config, so that the model gets the matching number of position embeddings."""
    if image_size is None:
        return
    if type(image_size) is not int or image_size < 1:
        raise InputError("image_size", image_size, "expected a positive integer")
    for part in (config, *(getattr(config, name, None) for name in _VISION)):
        stated = getattr(part, "image_size", None)
        if stated is not None:
            part.image_size = (
                type(stated)((image_size,) * len(stated)) if isinstance(stated, (list, tuple)) else image_size
            )


class InputSizes:
    """Computes each size on demand; ``chosen`` records the sizes used, as provenance."""

    def __init__(self, module: torch.nn.Module, config: Any, sizes: RequestedSizes) -> None:
        self.module, self.config, self.asked = module, config, sizes
        self.text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
        self.chosen: dict[str, str] = {}

    @property
    def vocabulary(self) -> int:
        size = getattr(self.text, "vocab_size", None)
        if size is None:  # models that hash characters, say, accept any number as a token
            return 2**16
        if not isinstance(size, int) or size < 1:
            raise InputError("config.vocab_size", size, "expected a positive vocabulary size")
        return size

    @property
    def length(self) -> int:
        """Tokens per sequence, also for models of which only the labels are tokens."""
        given, limit = self.asked.seq_len, self._max_length()
        length = given if given is not None else self._trained_length() or limit or DEFAULT_SEQ_LEN
        if type(length) is not int or length < 2 or (limit is not None and length > limit):
            raise InputError("seq_len", length, f"expected an integer in [2, {limit or 'any'}]")
        self.chosen["seq_len"] = str(length)
        return length

    def _trained_length(self) -> int | None:
        """The length that the model was pre-trained with, if its rotary angles were scaled to a longer one afterwards."""
        scaling = getattr(self.text, "rope_scaling", None)
        stated = scaling.get("original_max_position_embeddings") if isinstance(scaling, dict) else None
        return stated if type(stated) is int else None

    def _max_length(self) -> int | None:
        """The config's maximum length, if its class has one; a position table with a padding row holds fewer."""
        known = inspect.signature(type(self.text).__init__).parameters
        stated = (getattr(self.text, key) for key in _MAX_POSITIONS if key in known and getattr(self.text, key, None))
        limit = next((int(size) for size in stated if isinstance(size, int)), None)
        for name, part in self.module.named_modules():
            table = name.endswith("position_embeddings") and isinstance(part, torch.nn.Embedding)
            if table and part.padding_idx is not None:
                room = part.num_embeddings - part.padding_idx - 1
                limit = room if limit is None else min(limit, room)
        return limit

    @property
    def image(self) -> tuple[int, int]:
        """Height and width in pixels."""
        given, stated = self.asked.image_size, self._config_value(_VISION, "image_size")
        if isinstance(stated, dict):
            stated = [stated.get("height"), stated.get("width")]
        pair = (given, given) if given is not None else stated
        height, width = (pair[0], pair[-1]) if isinstance(pair, (list, tuple)) else (pair, pair)
        size = int(height or DEFAULT_IMAGE_SIZE), int(width or DEFAULT_IMAGE_SIZE)
        self.chosen["image_size"] = f"{size[0]}x{size[1]}"
        return size

    def pixels(self) -> tuple[int, ...]:
        """Frames for a video model, then channels, height and width."""
        frames = self._config_value(_VISION, "num_frames")
        channels = self._config_value(_VISION, "num_channels") or self._config_value(_VISION, "in_channels") or 3
        return (*((int(frames),) if frames is not None else ()), int(channels), *self.image)

    def spectrogram(self) -> tuple[int, int]:
        """Mel bins and frames, in the model's order.

        An encoder with a position for every second frame fixes the number of frames.
        """
        mels = next(
            (
                size
                for key in ("num_mel_bins", "input_feat_per_channel", "feature_size")
                if (size := self._config_value(_AUDIO, key))
            ),
            None,
        )
        if not mels:
            raise UnsupportedError(
                f"{self.config.model_type}: the config has no spectrogram size (num_mel_bins); give the model as "
                "package.module:factory with your own example inputs"
            )
        frames = self._config_value(_AUDIO, "max_source_positions")
        if hasattr(self.config, "input_feat_per_channel"):
            return (self.length, int(mels))
        return (int(mels), 2 * int(frames)) if frames else (2 * DEFAULT_SEQ_LEN, int(mels))

    def waveform(self) -> tuple[int, ...]:
        """Samples of audio; frames by mel bins for models that read spectrograms under the same name."""
        mels = self._config_value(_AUDIO, "num_mel_bins")
        length = int(getattr(self.config, "max_length", 1024))
        return (length, int(mels)) if mels else (AUDIO_SAMPLES,)

    def _config_value(self, parts: tuple[str, ...], key: str) -> Any:
        """``key`` of the config, or else of the first of its ``parts`` that has it."""
        for part in (self.config, *(getattr(self.config, name, None) for name in parts)):
            value = getattr(part, key, None)
            if value is not None:
                return value
        return None

    def refuse_unused(self) -> None:
        """Raise ``InputError`` for a size that the user asked for but no input has."""
        for name, given in (("seq_len", self.asked.seq_len), ("image_size", self.asked.image_size)):
            if given is not None and name not in self.chosen:
                raise InputError(name, given, f"{type(self.module).__name__} takes none")
