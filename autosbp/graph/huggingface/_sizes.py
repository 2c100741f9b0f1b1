"""Sizes of a model's inputs: tokens, pixels and sound, from what the user asked for and what the config says."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from autosbp.errors import InputError, UnsupportedError

DEFAULT_SEQ_LEN = 1024
DEFAULT_IMAGE_SIZE = 224
AUDIO_SAMPLES = 16_000
_MAX_POSITIONS = (
    "max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_target_positions", "max_seq_len",
)  # fmt: skip
_VISION, _AUDIO = ("vision_config", "encoder"), ("audio_config", "encoder_config", "encoder")


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the user asked for; None where the config decides."""

    seq_len: int | None
    image_size: int | None


def set_image_size(config: Any, image_size: int | None) -> None:
    """Give the config the image size that was asked for, so that the model has as many positions."""
    if image_size is None:
        return
    if type(image_size) is not int or image_size < 1:
        raise InputError("image_size", image_size, "a positive integer is expected")
    for part in (config, *(getattr(config, name, None) for name in _VISION)):
        stated = getattr(part, "image_size", None)
        if stated is not None:
            part.image_size = (
                type(stated)((image_size,) * len(stated)) if isinstance(stated, (list, tuple)) else image_size
            )


class InputSizes:
    """Each size on demand; ``chosen`` collects those asked for, as provenance."""

    def __init__(self, module: torch.nn.Module, config: Any, sizes: Sizes) -> None:
        self.module, self.config, self.asked = module, config, sizes
        self.text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
        self.chosen: dict[str, str] = {}

    @property
    def vocabulary(self) -> int:
        size = getattr(self.text, "vocab_size", None)
        if size is None:  # characters, say, which are hashed: any number is a token
            return 2**16
        if not isinstance(size, int) or size < 1:
            raise InputError("config.vocab_size", size, "a positive vocabulary is expected")
        return size

    @property
    def length(self) -> int:
        """Tokens per sequence, also where the model's labels alone are tokens."""
        given, limit = self.asked.seq_len, self._max_length()
        length = given if given is not None else min(limit or DEFAULT_SEQ_LEN, DEFAULT_SEQ_LEN)
        if type(length) is not int or length < 2 or (limit is not None and length > limit):
            raise InputError("seq_len", length, f"an integer in [2, {limit or 'any'}] is expected")
        self.chosen["seq_len"] = str(length)
        return length

    def _max_length(self) -> int | None:
        """The config's limit, where its class has one, less the positions that a table with a padding row keeps free."""
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
        given, stated = self.asked.image_size, self._of(_VISION, "image_size")
        if isinstance(stated, dict):
            stated = [stated.get("height"), stated.get("width")]
        pair = (given, given) if given is not None else stated
        height, width = (pair[0], pair[-1]) if isinstance(pair, (list, tuple)) else (pair, pair)
        size = int(height or DEFAULT_IMAGE_SIZE), int(width or DEFAULT_IMAGE_SIZE)
        self.chosen["image_size"] = f"{size[0]}x{size[1]}"
        return size

    def pixels(self) -> tuple[int, ...]:
        """Frames of a video, if it is one, then channels, height and width."""
        frames = self._of(_VISION, "num_frames")
        channels = self._of(_VISION, "num_channels") or self._of(_VISION, "in_channels") or 3
        return (*((int(frames),) if frames is not None else ()), int(channels), *self.image)

    def spectrogram(self) -> tuple[int, int]:
        """Mel bins by frames; an encoder with positions for half of the frames says how many."""
        mels = next(
            (
                size
                for key in ("num_mel_bins", "input_feat_per_channel", "feature_size")
                if (size := self._of(_AUDIO, key))
            ),
            None,
        )
        if not mels:
            raise UnsupportedError(
                f"{self.config.model_type}: no size of a spectrogram in the config (num_mel_bins); give the model as "
                "package.module:factory with example inputs of your own"
            )
        frames = self._of(_AUDIO, "max_source_positions")
        if hasattr(self.config, "input_feat_per_channel"):
            return (self.length, int(mels))
        return (int(mels), 2 * int(frames)) if frames else (2 * DEFAULT_SEQ_LEN, int(mels))

    def waveform(self) -> tuple[int, ...]:
        """Samples of sound; frames by mel bins for models that read spectrograms under the same name."""
        mels = self._of(_AUDIO, "num_mel_bins")
        length = int(getattr(self.config, "max_length", 1024))
        return (length, int(mels)) if mels else (AUDIO_SAMPLES,)

    def _of(self, parts: tuple[str, ...], key: str) -> Any:
        """``key`` of the config, or else of the first of its parts that has it."""
        for part in (self.config, *(getattr(self.config, name, None) for name in parts)):
            value = getattr(part, key, None)
            if value is not None:
                return value
        return None

    def refuse_unused(self) -> None:
        """A size that was asked for but that no input has is a mistake."""
        for name, given in (("seq_len", self.asked.seq_len), ("image_size", self.asked.image_size)):
            if given is not None and name not in self.chosen:
                raise InputError(name, given, f"{type(self.module).__name__} takes none")
