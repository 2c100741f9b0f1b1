"""Models at the edge."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from autosbp.zoo import zoo_names
from service.schemas._base import Document, Request, Response


class ZooModel(Request):
    """A model of the zoo, by name."""

    zoo: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")] = Field(
        json_schema_extra=lambda schema: schema.update(enum=[*zoo_names()])
    )


class HfModel(Request):
    """A model by its Hugging Face configuration; no remote code is ever run."""

    hf_config: dict[str, Any] = Field(description="The content of a config.json.")
    image_size: int | None = Field(None, ge=1, le=2**14, description="Pixels per side; the model's own by default.")
    seq_len: int | None = Field(None, ge=1, le=2**20, description="Sequence length; the model's own by default.")


class Model(Response):
    """A stored model graph, without the graph itself."""

    id: str = Field(examples=["mod-0a1b2c3d4e5f6071"])
    name: str
    source: str = Field(description="graph, zoo:NAME or hf_config.")
    graph_hash: str
    summary: Document = Field(description="Counts and sizes of the graph.")
    created_at: datetime


_GRAPH = {
    "schema": "autosbp.graph/1",
    "name": "sum-of-a-linear-layer",
    "symbols": {"batch": 4},
    "parameters": [{"name": "w", "shape": [3, 2], "dtype": "float32"}],
    "inputs": [{"name": "x", "shape": ["batch", 2], "dtype": "float32"}],
    "nodes": [
        {
            "name": "y",
            "op": "aten.linear.default",
            "args": [{"ref": "x"}, {"ref": "w"}],
            "outputs": [{"shape": ["batch", 3], "dtype": "float32"}],
        },
        {
            "name": "loss",
            "op": "aten.sum.default",
            "args": [{"ref": "y"}],
            "outputs": [{"shape": [], "dtype": "float32"}],
        },
    ],
    "loss": {"ref": "loss"},
}
EXAMPLES = {
    "graph": {"summary": "A graph document, as autosbp capture writes it", "value": _GRAPH},
    "zoo": {"summary": "A model of the zoo", "value": {"zoo": "gpt2"}},
    "hf_config": {
        "summary": "A Hugging Face configuration",
        "value": {"hf_config": {"model_type": "gpt2", "n_layer": 4}, "seq_len": 256},
    },
}
