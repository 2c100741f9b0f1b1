"""The zoo's catalog (``autosbp/data/zoo/catalog.yaml``), read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

from autosbp.utils.json_io import Fields


@dataclass(frozen=True, slots=True)
class HfEntry:
    """A model described by a Hugging Face config; ``seq_len`` is None for a model without text."""

    name: str
    source: str
    seq_len: int | None
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModuleEntry:
    """A class of ``autosbp.zoo.models`` with its arguments.

    ``inputs`` holds the sizes of one sample of each input, ``high`` the exclusive bounds of integer inputs.
    """

    name: str
    source: str
    module: str
    arguments: Mapping[str, Any]
    inputs: Mapping[str, tuple[int, ...]]
    high: Mapping[str, int]


def read_catalog() -> dict[str, HfEntry | ModuleEntry]:
    """Every entry by name, in the file's order."""
    document = yaml.safe_load((files("autosbp") / "data" / "zoo" / "catalog.yaml").read_text())
    return {name: _entry(name, data) for name, data in document.items()}


def _entry(name: str, data: object) -> HfEntry | ModuleEntry:
    if isinstance(data, Mapping) and "hf" in data:
        fields = Fields(data, name, ("source", "seq_len", "hf"))
        seq_len = fields.integer("seq_len", low=2) if fields.has("seq_len") else None
        return HfEntry(name, fields.text("source"), seq_len, fields.mapping("hf"))
    fields = Fields(data, name, ("source", "module", "arguments", "inputs", "high"))
    inputs = {key: tuple(sizes) for key, sizes in fields.mapping("inputs").items()}
    bounds = Fields(fields.raw("high"), fields.at("high"), tuple(inputs))
    return ModuleEntry(
        name,
        fields.text("source"),
        fields.text("module"),
        fields.mapping("arguments"),
        inputs,
        {key: bounds.integer(key, low=2) for key in bounds.data},
    )
