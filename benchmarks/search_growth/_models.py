"""GPT-3 with any number of layers: the zoo's graph with its block repeated accordingly."""

from __future__ import annotations

import json
import re
from typing import Any

from autosbp.graph.ir import LogicalGraph
from autosbp.graph.serialize import from_dict
from autosbp.zoo import zoo_graph

ZOO_NAME = "gpt3-175b"
_FIRST = ".h.0."


def gpt3(num_layers: int) -> LogicalGraph:
    """The captured graph with another ``repeat`` of its block; widths, sequence length and vocabulary are GPT-3's.

    Ops after the blocks are renamed, because the numbers in their captured names continue those of its 96 blocks.
    """
    document: dict[str, Any] = json.loads(json.dumps(zoo_graph(ZOO_NAME).to_dict()))
    nodes = document["nodes"]
    at = next(place for place, entry in enumerate(nodes) if "repeat" in entry)
    block, captured = nodes[at], nodes[at]["repeat"]
    last = block["nodes"][-1]["name"]
    names = {_numbered(last, captured - 1): _numbered(last, num_layers - 1)}
    names |= {entry["name"]: f"end_{entry['name']}" for entry in nodes[at + 1 :]}
    block["repeat"] = num_layers
    nodes[at + 1 :] = _renamed(nodes[at + 1 :], names)
    leaves = document["parameters"]
    first = [leaf for leaf in leaves if _FIRST in leaf["name"]]
    outside = [leaf for leaf in leaves if ".h." not in leaf["name"]]
    for layer in range(num_layers):
        outside += json.loads(json.dumps(first).replace(_FIRST, f".h.{layer}."))
    return from_dict(
        {
            **document,
            "parameters": outside,
            "loss": _renamed(document["loss"], names),
            "name": f"gpt3-{num_layers}-layers",
        }
    )


def _numbered(template: str, block: int) -> str:
    """Name of an op in a block: in a folded document, ``{i*D+K}`` stands for the number D * block + K."""
    return re.sub(r"\{i\*(\d+)\+(\d+)\}", lambda found: str(int(found[1]) * block + int(found[2])), template)


def _renamed(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _renamed(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, names) for each in value]
    return names.get(value, value) if isinstance(value, str) else value
