"""Example inputs of a model, from the names that its forward takes and from its config; labels always among them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import torch

from autosbp.errors import InputError, UnsupportedError
from autosbp.graph.huggingface._classes import TrainingClass

DEFAULT_SEQ_LEN = 1024
DEFAULT_IMAGE_SIZE = 224
AUDIO_SAMPLES = 16_000
NUM_CHOICES = 2
BATCH = 4
_MAX_POSITIONS = (
    "max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_target_positions", "max_seq_len",
)  # fmt: skip
_TEXT, _IMAGE, _VIDEO = "input_ids", "pixel_values", "pixel_values_videos"


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the user asked for; None where the config decides."""

    seq_len: int | None
    image_size: int | None


@dataclass
class ExampleInputs:
    """Tensors on the meta device by name, exclusive bounds of integer ones, and the sizes chosen, for provenance."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    highs: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, str] = field(default_factory=dict)

    def integers(self, name: str, shape: tuple[int, ...], high: int) -> None:
        self.tensors[name] = torch.zeros(BATCH, *shape, dtype=torch.long, device="meta")
        self.highs[name] = high

    def floats(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.tensors[name] = torch.zeros(BATCH, *shape, dtype=dtype, device="meta")


def example_inputs(
    module: torch.nn.Module, config: Any, chosen: TrainingClass, sizes: Sizes, dtype: torch.dtype
) -> ExampleInputs:
    """Inputs whose dim 0 is the batch; ``InputError`` for sizes that do not fit the model."""
    return _Inputs(module, config, chosen, sizes, dtype).run()


class _Inputs:
    def __init__(
        self, module: torch.nn.Module, config: Any, chosen: TrainingClass, sizes: Sizes, dtype: torch.dtype
    ) -> None:
        self.module, self.config, self.chosen, self.sizes, self.dtype = module, config, chosen, sizes, dtype
        self.text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
        self.takes = inspect.signature(module.forward).parameters
        self.found = ExampleInputs()

    def run(self) -> ExampleInputs:
        main = str(getattr(self.module, "main_input_name", _TEXT))
        self._data(main)
        for name, parameter in self.takes.items():
            required = (
                parameter.default is inspect.Parameter.empty and parameter.kind == parameter.POSITIONAL_OR_KEYWORD
            )
            if required and name not in self.found.tensors:
                self._data(name)
        self._labels()
        self._refuse_unused()
        return self.found

    def _data(self, name: str) -> None:
        if name == _TEXT:
            shape = (NUM_CHOICES, self.length) if self.chosen.labels == "choice" else (self.length,)
            self.found.integers(name, shape, self.vocabulary)
        elif name == _IMAGE:
            channels = int(self._vision("num_channels", 3))
            frames = self._vision("num_frames", None)
            lead = (int(frames),) if frames is not None else ()
            self.found.floats(name, (*lead, channels, *self.image), self.dtype)
        elif name == "input_features":
            self.found.floats(name, self._spectrogram(), self.dtype)
        elif name == "input_values":
            mels = getattr(self.config, "num_mel_bins", None)
            length = int(getattr(self.config, "max_length", 1024))
            self.found.floats(name, (length, int(mels)) if mels else (AUDIO_SAMPLES,), self.dtype)
        else:
            cls = type(self.module).__name__
            raise UnsupportedError(
                f"{cls} takes {name}, for which there is no example; give the model as package.module:factory with "
                "example inputs of your own"
            )

    def _spectrogram(self) -> tuple[int, int]:
        """Mel bins by frames; Whisper's encoder halves the frames."""
        mels = getattr(self.config, "num_mel_bins", None) or getattr(self.config, "input_feat_per_channel", None)
        frames = getattr(self.config, "max_source_positions", None)
        if not mels or not frames:
            raise UnsupportedError(f"{self.config.model_type}: a config with num_mel_bins and max_source_positions")
        if hasattr(self.config, "input_feat_per_channel"):
            return (self.length, int(mels))
        return (int(mels), 2 * int(frames))

    def _labels(self) -> None:
        kind, found, takes = self.chosen.labels, self.found, self.takes
        classes = int(getattr(self.config, "num_labels", 2) or 2)
        if "labels" in takes:
            shape, high = {
                "tokens": ((self.length,), self.vocabulary) if kind == "tokens" else ((), 0),
                "token classes": ((self.length,), classes) if kind == "token classes" else ((), 0),
                "class": ((), classes),
                "choice": ((), NUM_CHOICES),
                "pair": ((), 2),
                "pixel classes": (self.image if kind == "pixel classes" else (), classes),
                "transcript": ((16,), self.vocabulary if kind == "transcript" else 2),
            }.get(kind, ((), classes))
            found.integers("labels", shape, high)
        for name in ("next_sentence_label", "sentence_order_label"):
            if name in takes:
                found.integers(name, (), 2)
        for name in ("start_positions", "end_positions"):
            if name in takes and "labels" not in takes:
                found.integers(name, (), self.length)

    @property
    def vocabulary(self) -> int:
        size = int(getattr(self.text, "vocab_size", 0) or 0)
        if size < 1:
            raise InputError("config.vocab_size", size, "a positive vocabulary is expected")
        return size

    @property
    def length(self) -> int:
        """Tokens per sequence, also where the model's labels alone are tokens."""
        given, limit = self.sizes.seq_len, self._max_length()
        length = given if given is not None else min(limit or DEFAULT_SEQ_LEN, DEFAULT_SEQ_LEN)
        if type(length) is not int or length < 2 or (limit is not None and length > limit):
            raise InputError("seq_len", length, f"an integer in [2, {limit or 'any'}] is expected")
        self.found.sizes["seq_len"] = str(length)
        return length

    def _max_length(self) -> int | None:
        """The config's limit, less the positions that a table with a padding row keeps free."""
        limit = next((int(getattr(self.text, key)) for key in _MAX_POSITIONS if getattr(self.text, key, None)), None)
        for name, part in self.module.named_modules():
            table = name.endswith("position_embeddings") and isinstance(part, torch.nn.Embedding)
            if table and part.padding_idx is not None:
                room = part.num_embeddings - part.padding_idx - 1
                limit = room if limit is None else min(limit, room)
        return limit

    @property
    def image(self) -> tuple[int, int]:
        """Height and width in pixels."""
        given, stated = self.sizes.image_size, self._vision("image_size", None)
        if given is not None and (type(given) is not int or given < 1):
            raise InputError("image_size", given, "a positive integer is expected")
        if given is not None:
            height = width = given
        elif isinstance(stated, (list, tuple)):
            height, width = int(stated[0]), int(stated[-1])
        else:
            height = width = int(stated or DEFAULT_IMAGE_SIZE)
        self.found.sizes["image_size"] = f"{height}x{width}"
        return height, width

    def _vision(self, key: str, default: Any) -> Any:
        for part in (self.config, getattr(self.config, "vision_config", None)):
            value = getattr(part, key, None)
            if value is not None:
                return value
        return default

    def _refuse_unused(self) -> None:
        for name, given in (("seq_len", self.sizes.seq_len), ("image_size", self.sizes.image_size)):
            if given is not None and name not in self.found.sizes:
                raise InputError(name, given, f"{type(self.module).__name__} takes none")
