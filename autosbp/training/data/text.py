"""Samples of a causal language model: windows of a token sequence, and the following tokens as labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils.data import Dataset

from autosbp.errors import InputError
from autosbp.graph.ir import Input, LogicalGraph
from autosbp.training.data.tokens import Tokens

_LABELS = ("labels", "targets", "target")


@dataclass(frozen=True, slots=True)
class TextInputs:
    """Inputs of a language model.

    Args:
        tokens: name of the input with token ids.
        labels: name of the input with labels; "" if the model makes labels from the tokens.
        length: number of tokens of a sample.
        shift: offset of labels relative to tokens: 0 if the model shifts labels itself, otherwise 1.
        vocabulary: number of token ids; None if unknown.
    """

    tokens: str
    labels: str
    length: int
    shift: int
    vocabulary: int | None


def text_inputs(graph: LogicalGraph, module: torch.nn.Module | None) -> TextInputs:
    """Find the inputs of a language model in its graph.

    Args:
        graph: graph of a causal language model.
        module: the model, if available.

    Raises:
        InputError: the model has other inputs than tokens and labels.
    """
    sequences = {leaf.name: leaf for leaf in graph.inputs if _is_sequence(leaf)}
    labels = next((name for name in _LABELS if name in sequences), "")
    tokens = [name for name in sequences if name != labels]
    if len(tokens) != 1 or len(sequences) != len(graph.inputs):
        names = ", ".join(leaf.name for leaf in graph.inputs)
        limit = f"text is for models of token ids and labels; this one takes {names}: give package.module:dataset"
        raise InputError("data", names, limit)
    leaf = sequences[tokens[0]]
    length = leaf.meta.shape[1]
    assert isinstance(length, int)
    return TextInputs(tokens[0], labels, length, 0 if not labels or _shifts_labels(graph, module) else 1, leaf.high)


def _shifts_labels(graph: LogicalGraph, module: torch.nn.Module | None) -> bool:
    """Whether a model shifts its labels itself, as causal language models of transformers do.

    Raises:
        InputError: the model is one of transformers for another task.
    """
    source = graph.provenance.get("source", "")
    kind = type(module)
    name = kind.__name__ if module is not None and kind.__module__.startswith("transformers.") else ""
    if source.startswith("transformers "):
        name = source.split()[-1]
    if name and not name.endswith(("ForCausalLM", "LMHeadModel")):
        raise InputError("data", name, "text is for causal language models: give package.module:dataset")
    return bool(name)


def _is_sequence(leaf: Input) -> bool:
    return not leaf.meta.is_float and len(leaf.meta.shape) == 2 and isinstance(leaf.meta.shape[1], int)


class TokenWindows(Dataset[dict[str, torch.Tensor]]):
    """Consecutive windows of ``inputs.length`` tokens; an incomplete last window is dropped.

    Args:
        tokens: token ids of the whole text.
        inputs: inputs of the model.
        source: name of the text in errors.
    """

    def __init__(self, tokens: Tokens, inputs: TextInputs, source: str) -> None:
        self.tokens, self.inputs, self.source = tokens, inputs, source
        if not len(self):
            limit = f"expected more than {inputs.length} tokens, one sample"
            raise InputError("data", f"{source}, of {len(tokens)} tokens", limit)

    def __len__(self) -> int:
        return max(0, (len(self.tokens) - self.inputs.shift) // self.inputs.length)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        inputs = self.inputs
        if not 0 <= at < len(self):
            raise IndexError(at)
        first = at * inputs.length
        window = torch.from_numpy(self.tokens[first : first + inputs.length + inputs.shift].astype("int64"))
        if inputs.vocabulary is not None and int(window.max()) >= inputs.vocabulary:
            limit = f"the model's vocabulary has {inputs.vocabulary} tokens"
            raise InputError("data", f"token {int(window.max())} in {self.source}", limit)
        sample = {inputs.tokens: window[: inputs.length]}
        return sample | ({inputs.labels: window[inputs.shift :]} if inputs.labels else {})
