from __future__ import annotations

import zlib
from base64 import b64encode
from typing import Any

import pytest

from autosbp.errors import GraphError
from autosbp.graph._reader import MAX_CONSTANT_BYTES
from autosbp.graph.constants import encode_bytes
from autosbp.graph.serialize import from_dict
from autosbp.sbp.rules import check_graph
from autosbp.utils.json_io import canonical, loads
from tests.graph.documents import document, nested

BOMB = b64encode(zlib.compress(bytes(64 * 2**20), 9)).decode()
HUGE = {"name": "big", "shape": [MAX_CONSTANT_BYTES // 4], "dtype": "float32", "data": BOMB}


def load(data: Any) -> None:
    check_graph(from_dict(data))


def test_reading_what_was_written_gives_the_same_graph_and_hash() -> None:
    graph = from_dict(document())
    for fold in (True, False):
        again = from_dict(loads(canonical(graph.to_dict(fold=fold))))
        assert again == graph
        assert again.graph_hash == graph.graph_hash


def test_the_hash_sees_every_value_but_provenance() -> None:
    base = from_dict(document()).graph_hash
    assert from_dict(document(("provenance", {"source": "elsewhere"}))).graph_hash == base
    for change in [("nodes.0.args.1", 3.0), ("symbols.batch", 5), ("inputs.1.high", 8), ("name", "other")]:
        assert from_dict(document(change)).graph_hash != base


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        (("schema", "autosbp.graph/2"), "schema", "autosbp.graph/2"),
        (("schema", ...), "schema", "None"),
        (("extra", 1), "extra", "1"),
        (("nodes.1.extra", 1), "nodes[1].extra", "1"),
        (("nodes.1.op", "aten.unknown"), "y.op", "aten.unknown"),
        (("nodes.1.op", "os.system('ls').default"), "y.op", "os.system('ls').default"),
        (("nodes.1.args.0.ref", "z"), "nodes[1].args[0]", "'z'"),
        (("nodes.1.args.0.ref", ["x"]), "nodes[1].args[0]", "['x']"),
        (("nodes.1.args.0.out", 1), "nodes[1].args[0]", "1"),
        (("nodes.1.args.0.out", True), "nodes[1].args[0]", "True"),
        (("nodes.1.outputs.0.shape", ["batch", 4]), "y.", "4"),
        (("nodes.2.outputs.0.shape", ["batch", 5]), "z.", "3"),
        (("nodes.1.outputs.0.shape", [4, 3]), "y.", "4"),
        (("nodes.3.outputs.0.shape", ["2*batch"]), "flat.outputs[0].shape", "[8]"),
        (("nodes.5.outputs.0.shape", [1]), "mean.outputs[0].shape", "[1]"),
        (("nodes.1.outputs", []), "nodes[1].outputs", "[]"),
        (("nodes.1.outputs.0.dtype", "complex64"), "nodes[1].outputs[0].dtype", "complex64"),
        (("nodes.1.args", [{"ref": "x"}]), "y.args", "None"),
        (("nodes.0.args.1", float("nan")), "nodes[0].args[1]", "nan"),
        (("nodes.0.args.1", float("inf")), "nodes[0].args[1]", "inf"),
        (("nodes.0.args.1", 2**63), "nodes[0].args[1]", str(2**63)),
        (("nodes.0.args.1", {"code": "x"}), "nodes[0].args[1]", "code"),
        (("nodes.4.args.1.dtype", []), "nodes[4].args[1]", "[]"),
        (("nodes.6.args.1.sym", "seq"), "nodes[6].args[1]", "seq"),
        (("nodes.0.args.1", nested(9)), "nodes[0].args[1]", "..."),
        (("nodes.0.args.1", nested(900)), "nodes[0].args[1]", "..."),
        (("nodes.2.name", "y"), "nodes[2].name", "'y'"),
        (("nodes.2.name", "x"), "nodes[2].name", "'x'"),
        (("nodes.2.name", "a b"), "nodes[2].name", "'a b'"),
        (("nodes.2.name", "n" * 300), "nodes[2].name", "nnn"),
        (("parameters.0.shape.0", 2**63), "parameters[0].shape[0]", str(2**63)),
        (("parameters.0.shape.0", -1), "parameters[0].shape[0]", "-1"),
        (("parameters.0.shape.0", 2.0), "parameters[0].shape[0]", "2.0"),
        (("parameters.0.shape", [2**30, 2**30]), "parameters[0].shape", str(2**30)),
        (("parameters.0.shape", [1] * 13), "parameters[0].shape", "1, 1"),
        (("parameters.0.shape.0", "batch"), "parameters[0].shape", "batch"),
        (("parameters.0.shape.0", "4"), "parameters[0].shape", "'4'"),
        (("parameters.0.transforms", [["exec", "x"]]), "parameters[0].transforms", "exec"),
        (("parameters.0.transforms", [["blocks", 0, 2, 3, 3]]), "parameters[0].transforms", "blocks"),
        (("parameters.0.transforms", [7]), "parameters[0].transforms", "7"),
        (("parameters.0.transforms", [["slice", 0, 3, 3]]), "parameters[0].transforms", "slice"),
        (("inputs.0.shape.0", "seq"), "inputs[0].shape[0]", "seq"),
        (("inputs.1.high", 0), "inputs[1].high", "0"),
        (("symbols.batch", 0), "symbols.batch", "0"),
        (("constants.0.data", encode_bytes(bytes(11))), "constants[0].data", "..."),
        (("constants.0.data", encode_bytes(bytes(13))), "constants[0].data", "..."),
        (("constants.0.data", "not base64"), "constants[0].data", "not base64"),
        (("constants.0.data", b64encode(b"not zlib").decode()), "constants[0].data", "base64"),
        (("constants.0.data", BOMB), "constants[0].data", "..."),
        (("constants.0.shape", [2**30]), "constants[0].shape", str(2**30)),
        (("constants.0.shape", ["3"]), "constants[0].shape", "'3'"),
        (("constants", [{**HUGE, "name": f"big{index}"} for index in range(5)]), "constants", str(5 * 64 * 2**20)),
        (("loss", 3), "loss", "3"),
        (("loss.ref", "z"), "loss", "batch"),
        (("loss.ref", "nothing"), "loss", "nothing"),
        (("nodes", 7), "nodes", "7"),
        (("nodes.0", {"repeat": 2**40, "nodes": []}), "nodes[0]", str(2**40)),
        (("nodes.0", {"repeat": 2**40, "nodes": [{}]}), "nodes", str(2**40)),
        (("nodes.0", {"repeat": -1, "nodes": [{}]}), "nodes[0]", "-1"),
    ],
)  # fmt: skip
def test_a_document_that_breaks_a_rule_is_refused_by_field_and_value(change: Any, field: str, value: str) -> None:
    with pytest.raises(GraphError) as caught:
        load(document(change))
    assert caught.value.field.startswith(field)
    assert value in str(caught.value)


@pytest.mark.parametrize("data", [None, [], "graph", 7, {}])
def test_what_is_no_document_is_refused(data: object) -> None:
    with pytest.raises(GraphError):
        from_dict(data)


def test_a_loss_that_no_parameter_reaches_is_refused() -> None:
    nodes = [*document()["nodes"][:1], {"name": "total", "op": "aten.sum.default", "args": [{"ref": "two"}],
             "outputs": [{"shape": [], "dtype": "float32"}]}]  # fmt: skip
    with pytest.raises(GraphError, match="must depend on a parameter"):
        load(document(("nodes", nodes), ("loss.ref", "total")))


def test_mappings_nested_without_end_are_refused() -> None:
    with pytest.raises(GraphError, match="nested"):
        from_dict(document(("nodes.0", {"repeat": 2, "nodes": [{"name": "a", "args": nested(5000)}]})))
