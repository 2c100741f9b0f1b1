"""Schemas of models."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from autosbp.errors import InputError
from autosbp.service.schemas._base import Document, Request, Response
from autosbp.service.schemas.searches import SearchOfCapture
from autosbp.zoo import zoo_names


class ZooModel(Request):
    """A model of the zoo, by name."""

    zoo: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")] = Field(
        json_schema_extra=lambda schema: schema.update(enum=[*zoo_names()])
    )


class CaptureRequest(Request):
    """What requests for a capture have in common."""

    search: SearchOfCapture | None = Field(
        None,
        description="Search to queue as soon as the model is stored. The job's result then has search_id and "
        "search_job_id; if the search is refused, it has search_problem instead, and the model is kept.",
    )


class HfModel(CaptureRequest):
    """A model as a Hugging Face configuration; remote code is never run."""

    hf_config: dict[str, Any] = Field(description="Contents of a config.json.")
    image_size: int | None = Field(None, ge=1, le=2**14, description="Pixels per side; default: that of the model.")
    seq_len: int | None = Field(None, ge=1, le=2**20, description="Sequence length; default: that of the model.")

    def payload(self) -> Document:
        """The capture job's payload."""
        return self.model_dump(exclude={"search"})


class OnnxModel(CaptureRequest):
    """A model as an ONNX file without external data; its weights are not stored.

    A process with limits parses the file. If the first output is a float scalar, it is the training loss.
    """

    onnx: str = Field(
        min_length=1, description="Contents of the file in base64.", json_schema_extra={"contentEncoding": "base64"}
    )
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] | None = Field(
        None, description="Name of the model; default: that of the file's graph."
    )

    def content(self) -> bytes:
        """Decode the file; raise ``InputError`` if it is not base64."""
        try:
            return base64.b64decode(self.onnx, validate=True)
        except ValueError as error:
            raise InputError("onnx", self.onnx, f"expected base64 ({error})") from None


class Model(Response):
    """A stored model graph, without the graph itself."""

    id: str = Field(examples=["mod-0a1b2c3d4e5f60718293a4b5c6d7e8f9"])
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
}
CAPTURE_EXAMPLES = {
    "hf_config": {
        "summary": "A Hugging Face configuration",
        "value": {"hf_config": {"model_type": "gpt2", "n_layer": 4}, "seq_len": 256},
    },
}
