"""Models at the edge."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from autosbp.errors import InputError
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


class OnnxModel(Request):
    """A model by an ONNX file without external data, with its weights, which are not stored. It is parsed in a process with
    limits; a first output that is a float scalar is the training loss."""

    onnx: str = Field(min_length=1, description="The file in base64.", json_schema_extra={"contentEncoding": "base64"})
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] | None = Field(
        None, description="Of the model; by default that of the file's graph."
    )

    def content(self) -> bytes:
        """The file; ``InputError`` where it is no base64."""
        try:
            return base64.b64decode(self.onnx, validate=True)
        except ValueError as error:
            raise InputError("onnx", self.onnx, f"base64 is expected ({error})") from None


class Model(Response):
    """A stored model graph, without the graph itself."""

    id: str = Field(examples=["mod-0a1b2c3d4e5f6071"])
    name: str
    source: str = Field(description="graph, zoo:NAME, hf_config or onnx.")
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
