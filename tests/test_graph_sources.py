from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from autosbp import graph_sources
from autosbp.errors import GraphError, InputError
from autosbp.graph.serialize import from_dict
from autosbp.graph_sources import load_model, trainable_module
from benchmarks.fuzz._corpus import onnx_models
from tests.graph.documents import document
from tests.graph.test_capture import LLAMA

pytestmark = pytest.mark.integration

FACTORIES = "tests.graph.factories_for_tests"


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_graph_document_is_read_from_a_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"graph{suffix}"
    data = json.dumps(document()).encode()
    path.write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
    assert load_model(str(path)) == from_dict(document())


def test_a_document_is_checked_against_the_rules(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(document(("nodes.1.op", "aten.rand"))))
    with pytest.raises(GraphError, match=r"aten\.rand"):
        load_model(str(path))


def test_a_hugging_face_config_file_is_captured(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert load_model(f"hf:{path}", seq_len=8).inputs[0].meta.shape == ("batch", 8)


@pytest.mark.parametrize(("name", "high"), [("pair", 4), ("Described", 3)])
def test_a_factory_is_called_and_captured_with_labels_below_the_classes_or_what_it_says(name: str, high: int) -> None:
    graph = load_model(f"{FACTORIES}:{name}")
    assert graph.name == name
    assert [leaf.name for leaf in graph.inputs] == ["x", "labels"]
    assert graph.inputs[1].high == high
    assert graph.summary()["num_parameters"] == 8 * 6 + 6 + 6 * 4 + 4


def test_modules_of_the_working_directory_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_model_of_tests.py").write_text(f"from {FACTORIES} import pair as make\n")
    monkeypatch.chdir(tmp_path)
    assert load_model("my_model_of_tests:make").name == "make"


@pytest.mark.parametrize(
    ("model", "match"),
    [
        ("", "zoo:NAME"),
        ("gpt2", "zoo:NAME"),
        ("zoo:", "zoo:NAME"),
        ("graph.yaml", "zoo:NAME"),
        ("s3://bucket/graph.py", "zoo:NAME"),
        ("zoo:no-such-model", "gpt2-demo"),
        ("zoo:../catalog", "gpt2-demo"),
        ("no/such/graph.json", "No such file"),
        ("graph\0.json", "null"),
        ("hf:no/such/config.json", "No such file"),
        ("no_such_package:factory", "ModuleNotFoundError"),
        ("os:no_such_name", "AttributeError"),
        (f"{FACTORIES}:NOT_CALLABLE", "callable"),
        (f"{FACTORIES}:no_module", "torch.nn.Module"),
        (f"{FACTORIES}:alone", "torch.nn.Module"),
        (f"{FACTORIES}:no_mapping", "example_inputs: .?list.? is invalid: .* mapping of tensors"),
        (f"{FACTORIES}:no_tensor", "x: list"),
        (f"{FACTORIES}:scalar", "batch dim"),
        (f"{FACTORIES}:batches_differ", "same batch size"),
        (f"{FACTORIES}:batch_of_one", "at least 2"),
        (f"{FACTORIES}:fails", "no data here"),
        (f"{FACTORIES}:needs_arguments", "TypeError"),
    ],
)
def test_what_names_no_model_is_refused_with_the_value(model: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        load_model(model)


def test_a_sequence_length_is_for_hugging_face_configs() -> None:
    with pytest.raises(InputError, match="seq_len"):
        load_model("zoo:mlp", seq_len=8)


def test_an_onnx_file_is_captured_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_models()[0])
    graph = load_model(f"onnx:{path}")
    assert (graph.name, len(graph.parameters)) == ("model", 2)
    with pytest.raises(InputError, match="expected a readable file"):
        load_model("onnx:none.onnx")


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"plain", "gzip"),
        (gzip.compress(b"{}", mtime=0)[:-4], "truncated"),
        (gzip.compress(b"{'a'", mtime=0), "JSON"),
        (gzip.compress(b"[1, NaN]", mtime=0), "finite"),
        (gzip.compress(b" " * 2_000_000, mtime=0), "unpacked"),
        (bytes(1_000_001), "1000000 bytes"),
    ],
)
def test_a_broken_or_oversized_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, match: str
) -> None:
    monkeypatch.setattr(graph_sources, "MAX_FILE_BYTES", 1_000_000)
    path = tmp_path / "graph.json.gz"
    path.write_bytes(data)
    with pytest.raises(InputError, match=match):
        load_model(str(path))


@pytest.mark.parametrize("text", ["[]", "7", "{"])
def test_a_config_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match="JSON"):
        load_model(f"hf:{path}")


def test_a_config_and_a_factory_give_the_module_that_trains_and_a_graph_none(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 16, "vocab_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = f"hf:{tmp_path / 'config.json'}"
    module = trainable_module(model)
    assert module is not None and module.training
    named = dict(module.named_parameters())
    assert {leaf.source for leaf in load_model(model, check=False).parameters} == set(named)
    assert not any(each.is_meta for each in named.values())
    assert float(named["transformer.wte.weight"].detach().std()) == pytest.approx(0.02, rel=0.1)
    own = trainable_module("examples.train_own_data:factory")
    assert own is not None and not any(each.is_meta for each in own.parameters())
    assert trainable_module("zoo:gpt2-demo") is None and trainable_module("graph.json") is None
