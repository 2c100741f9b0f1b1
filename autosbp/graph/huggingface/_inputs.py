"""Example inputs of a model, from its forward's argument names and its config; they always include labels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from autosbp.errors import UnsupportedError
from autosbp.graph.huggingface._classes import TrainingClass
from autosbp.graph.huggingface._sizes import InputSizes, RequestedSizes

BATCH = 4
NUM_CHOICES = 2
TRANSCRIPT_LENGTH = 16
_TEXT = "input_ids"
_OPTIONAL = ("pixel_values", "pixel_values_videos", "input_features", "input_values", "decoder_input_ids")
"""Inputs that some models need although they have a default in ``forward``."""
_SENTENCE_LABELS = ("next_sentence_label", "sentence_order_label")


@dataclass
class ExampleInputs:
    """Meta-device tensors by name, exclusive bounds of integer ones, other arguments, and the chosen sizes."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    highs: dict[str, int] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, str] = field(default_factory=dict)

    def integers(self, name: str, shape: tuple[int, ...], high: int) -> None:
        self.tensors[name] = torch.zeros(BATCH, *shape, dtype=torch.long, device="meta")
        self.highs[name] = high

    def floats(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.tensors[name] = torch.zeros(BATCH, *shape, dtype=dtype, device="meta")


def example_inputs(
    module: torch.nn.Module,
    config: Any,
    chosen: TrainingClass,
    sizes: RequestedSizes,
    dtype: torch.dtype,
    *,
    full: bool = False,
) -> ExampleInputs:
    """Example inputs whose dim 0 is the batch: the main input, required ones and labels.

    With ``full``, also every other kind of data that the model takes. Raises ``InputError`` for sizes that do not fit
    the model.
    """
    return _Inputs(module, config, chosen, sizes, dtype).run(full=full)


class _Inputs:
    def __init__(
        self, module: torch.nn.Module, config: Any, chosen: TrainingClass, sizes: RequestedSizes, dtype: torch.dtype
    ) -> None:
        self.module, self.config, self.chosen, self.dtype = module, config, chosen, dtype
        self.sizes = InputSizes(module, config, sizes)
        self.takes = inspect.signature(module.forward).parameters
        self.found = ExampleInputs()

    def run(self, *, full: bool) -> ExampleInputs:
        pairs = "return_loss" in self.takes
        self._add_input(str(getattr(self.module, "main_input_name", _TEXT)))
        for name, parameter in self.takes.items():
            required = (
                parameter.default is inspect.Parameter.empty and parameter.kind == parameter.POSITIONAL_OR_KEYWORD
            )
            optional = name in (_TEXT, *_OPTIONAL) and (full or pairs)
            if (required or optional) and name not in self.found.tensors:
                self._add_input(name)
        if pairs:
            self.found.settings["return_loss"] = True
        self._labels()
        self.sizes.refuse_unused()
        self.found.sizes = self.sizes.chosen
        return self.found

    def _add_input(self, name: str) -> None:
        sizes, found = self.sizes, self.found
        tokens = (NUM_CHOICES, sizes.length) if self.chosen.labels == "choice" else None
        makers: Mapping[str, Callable[[], None]] = {
            _TEXT: lambda: found.integers(name, tokens or (sizes.length,), sizes.vocabulary),
            "decoder_input_ids": lambda: found.integers(name, (sizes.length,), sizes.vocabulary),
            "attention_mask": lambda: found.integers(name, tokens or (sizes.length,), 2),
            "token_type_ids": lambda: found.integers(name, tokens or (sizes.length,), self._num_token_types()),
            "pixel_values": lambda: found.floats(name, sizes.pixels(), self.dtype),
            "pixel_values_videos": lambda: found.floats(name, sizes.pixels(), self.dtype),
            "input_features": lambda: found.floats(name, sizes.spectrogram(), self.dtype),
            "input_values": lambda: found.floats(name, sizes.waveform(), self.dtype),
        }
        if name not in makers:
            cls = type(self.module).__name__
            raise UnsupportedError(
                f"{cls} takes {name}, for which autosbp has no example input; give the model as "
                "package.module:factory with your own example inputs"
            )
        makers[name]()

    def _num_token_types(self) -> int:
        return max(1, int(getattr(self.sizes.text, "type_vocab_size", 1) or 1))

    def _labels(self) -> None:
        found, takes, sizes = self.found, self.takes, self.sizes
        if "labels" in takes and self.chosen.labels != "none":
            self._class_labels(self.chosen.labels)
        for name in _SENTENCE_LABELS:
            if name in takes:
                found.integers(name, (), 2)
        pairs = any(name in takes for name in _SENTENCE_LABELS) or self.chosen.labels == "pair"
        if pairs and "token_type_ids" in takes and self._num_token_types() > 1:
            self._add_input("token_type_ids")
        for name in ("start_positions", "end_positions"):
            if name in takes and "labels" not in takes:
                found.integers(name, (), sizes.length)

    def _class_labels(self, kind: str) -> None:
        found, sizes = self.found, self.sizes
        classes = int(getattr(self.config, "num_labels", 2) or 2)
        problem = getattr(self.config, "problem_type", None)
        if kind == "class" and (problem == "regression" or (problem is None and classes == 1)):
            found.floats("labels", () if classes == 1 else (classes,), self.dtype)
        elif kind == "class" and problem == "multi_label_classification":
            found.floats("labels", (classes,), self.dtype)
        elif kind == "pixels":
            found.floats("labels", sizes.image, self.dtype)
        else:
            tables: Mapping[str, Callable[[], tuple[tuple[int, ...], int]]] = {
                "tokens": lambda: ((sizes.length,), sizes.vocabulary),
                "token classes": lambda: ((sizes.length,), classes),
                "choice": lambda: ((), NUM_CHOICES),
                "pair": lambda: ((), 2),
                "pixel classes": lambda: (sizes.image, classes),
                "transcript": lambda: ((TRANSCRIPT_LENGTH,), sizes.vocabulary),
            }
            found.integers("labels", *tables.get(kind, lambda: ((), classes))())
