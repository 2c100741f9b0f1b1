"""Datasets of ``autosbp train``: text, images, and the user's own.

| source | dataset |
|---|---|
| ``FILE.bin`` | token ids: raw ``uint16``, or ``uint32`` for vocabularies above 65,536 |
| ``FILE.npy`` | token ids: a NumPy array of integers |
| any other file | text: tokenised by a ``tokenizer.json``, or its bytes |
| a folder | images, one sub-folder for each class |
| ``package.module:dataset`` | a callable that returns a ``torch.utils.data.Dataset`` of dicts with the model's inputs |

Token ids are memory-mapped. A sample is a dict of one tensor for each input of the model, without the batch dim.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Dataset

from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.training.data.images import ImageFolder
from autosbp.training.data.text import TokenWindows, text_inputs
from autosbp.training.data.tokens import open_tokens

Sample = dict[str, Any]
_OWN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def load_dataset(
    sources: Sequence[str],
    graph: LogicalGraph,
    module: torch.nn.Module | None = None,
    *,
    tokenizer: Path | None = None,
    cache: Path | None = None,
) -> Dataset[Sample]:
    """Load the concatenation of all sources.

    Args:
        sources: see the module docstring.
        graph: the model's graph, which determines the inputs of a sample.
        module: the model, if available: causal language models of transformers shift their labels themselves.
        tokenizer: a Hugging Face ``tokenizer.json``, for text.
        cache: folder for tokenised text, which all ranks can access.

    Raises:
        InputError: a source does not exist or does not match the model's inputs.
    """
    parts = [_load(source, graph, module, tokenizer, cache) for source in sources]
    if not parts:
        raise InputError("data", None, "at least one file, folder or package.module:dataset is needed")
    return parts[0] if len(parts) == 1 else ConcatDataset(parts)


def _load(
    source: str, graph: LogicalGraph, module: torch.nn.Module | None, tokenizer: Path | None, cache: Path | None
) -> Dataset[Sample]:
    path = Path(source)
    if path.is_dir():
        return ImageFolder(path, graph)
    if path.is_file():
        inputs = text_inputs(graph, module)
        return TokenWindows(open_tokens(path, inputs.vocabulary, tokenizer, cache), inputs, source)
    if _OWN.fullmatch(source):
        return _own(source)
    raise InputError("data", source, "expected a file, a folder of images or package.module:dataset")


def _own(source: str) -> Dataset[Sample]:
    from autosbp.graph.user_modules import call_named

    found = call_named("data", source)
    if not hasattr(found, "__len__") or not hasattr(found, "__getitem__"):
        limit = "expected a callable that returns a data set with __len__ and __getitem__"
        raise InputError("data", source, limit)
    dataset: Dataset[Sample] = found
    return dataset
