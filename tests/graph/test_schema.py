"""The published JSON schema agrees with the reader: it takes what is shipped and refuses what the reader refuses."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from autosbp.errors import GraphError
from autosbp.graph.ir import DTYPE_BYTES
from autosbp.graph.serialize import from_dict
from autosbp.zoo import zoo_graph, zoo_names
from tests.graph.documents import document

pytestmark = pytest.mark.integration

SCHEMA = json.loads((files("autosbp") / "data" / "graph.schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA)


def test_the_schema_is_valid_itself() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$defs"]["dtype"]["enum"] == list(DTYPE_BYTES)


def test_a_small_document_is_valid() -> None:
    VALIDATOR.validate(document())


def test_a_document_with_an_infinite_argument_is_valid() -> None:
    VALIDATOR.validate(document(("nodes.0.args.1", {"float": "-Infinity"})))


@pytest.mark.parametrize("name", zoo_names())
def test_shipped_documents_are_valid(name: str) -> None:
    VALIDATOR.validate(zoo_graph(name).to_dict())


@pytest.mark.parametrize(
    "change",
    [
        ("schema", "autosbp.graph/2"),
        ("name", ""),
        ("extra", 1),
        ("loss", "loss"),
        ("loss", ...),
        ("nodes", {}),
        ("symbols.batch", 0),
        ("symbols", {"Batch": 4}),
        ("provenance", 3),
        ("nodes.1.extra", 1),
        ("nodes.1.outputs", []),
        ("nodes.1.outputs.0.dtype", "complex64"),
        ("nodes.1.name", "a b"),
        ("nodes.1.args.0", {"ref": "x", "code": "y"}),
        ("nodes.1.args.0", {"ref": ["x"]}),
        ("nodes.1.args.0.out", -1),
        ("nodes.4.args.1.dtype", "string"),
        ("nodes.0.args.1", {"float": "inf"}),
        ("nodes.6.args.1.sym", "batch/2"),
        ("nodes.0", {"repeat": 0, "nodes": []}),
        ("nodes.0", {"repeat": 2, "nodes": []}),
        ("nodes.0", 7),
        ("parameters.0.shape", 3),
        ("parameters.0.shape.0", 2**63),
        ("parameters.0.shape.0", "batch"),
        ("parameters.0.transforms", [["exec", "x"]]),
        ("parameters.0.transforms", [["slice", 0, 1]]),
        ("parameters.0.transforms", [["blocks", 0, 0, 0, 1]]),
        ("parameters.0.transforms", [["blocks", 0, 2, 1]]),
        ("parameters.0.transforms", [["blocks", 12, 2, 0, 1]]),
        ("inputs.0.shape.0", "batch-1"),
        ("inputs.0.shape.0", -1),
        ("inputs.1.high", 0),
        ("constants.0.data", 3),
        ("constants.0.data", "not base64"),
    ],
)
def test_what_the_schema_refuses_the_reader_refuses(change: Any) -> None:
    assert not VALIDATOR.is_valid(document(change))
    with pytest.raises(GraphError):
        from_dict(document(change))
