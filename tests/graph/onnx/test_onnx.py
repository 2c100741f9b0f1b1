"""ONNX files are parsed by a process with limits: what it cannot read, or only with more than these, is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from autosbp.errors import InputError
from autosbp.graph import onnx
from autosbp.graph.onnx import Skeleton, model_name, read_onnx, read_onnx_file
from benchmarks.fuzz._corpus import onnx_models

pytestmark = pytest.mark.integration


def written(model: ModelProto) -> bytes:
    return bytes(model.SerializeToString())


def plain() -> ModelProto:
    return ModelProto.FromString(onnx_models()[0])


def test_a_skeleton_is_the_file_without_its_weights() -> None:
    found = read_onnx(onnx_models()[0])
    assert [node.op for node in found.nodes] == ["Gemm", "Relu"] and found.opset == 17
    assert [(one.name, one.shape, one.data) for one in found.tensors] == [("w", (3, 4), None), ("b", (3,), None)]
    assert [(one.name, one.shape) for one in found.inputs] == [("x", ("batch", 4))] and found.outputs == ("y",)
    assert Skeleton.from_dict(found.document) == found


def test_functions_of_a_file_are_put_in_the_place_of_their_calls() -> None:
    assert [node.op for node in read_onnx(onnx_models()[2]).nodes] == ["Gemm", "Relu"]


def test_tensors_that_are_no_weights_keep_their_values() -> None:
    model = plain()
    model.graph.initializer.append(numpy_helper.from_array(np.array([2, -1], np.int64), "shape"))
    model.graph.initializer.append(numpy_helper.from_array(np.triu(np.full((4, 4), -np.inf, np.float32), 1), "mask"))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "scale"))
    found = {one.name: one for one in read_onnx(model.SerializeToString()).tensors}
    assert found["w"].data is None
    assert found["shape"].values().tolist() == [2, -1]
    assert found["mask"].values()[0].tolist() == [0.0, *(-np.inf,) * 3]
    assert found["scale"].values().tolist() == 0.5


def external(model: ModelProto) -> None:
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL
    model.graph.initializer[0].external_data.add(key="location", value="/etc/passwd")


def hidden(model: ModelProto) -> None:
    tensor = TensorProto(name="t", data_location=TensorProto.EXTERNAL)
    model.graph.node[0].attribute.append(AttributeProto(name="value", type=AttributeProto.TENSOR, t=tensor))


def negative(model: ModelProto) -> None:
    model.graph.initializer[0].dims[0] = -3


def vast(model: ModelProto) -> None:
    model.graph.initializer[0].dims[:] = [2**40, 2**40]


def deep(model: ModelProto) -> None:
    graph = GraphProto(name="innermost")
    for _ in range(12):
        attribute = AttributeProto(name="body", type=AttributeProto.GRAPH, g=graph)
        graph = GraphProto(name="around", node=[NodeProto(op_type="Loop", attribute=[attribute])])
    model.graph.CopyFrom(graph)


def branching(model: ModelProto) -> None:
    model.CopyFrom(ModelProto.FromString(onnx_models()[1]))


def other(model: ModelProto) -> None:
    model.graph.node[0].domain = "com.microsoft"


def cut(model: ModelProto) -> None:
    model.graph.initializer[0].raw_data = bytes(44)


def older(model: ModelProto) -> None:
    model.opset_import[0].version = 9


def complex_numbers(model: ModelProto) -> None:
    model.graph.initializer[0].data_type = TensorProto.COMPLEX64


def many(model: ModelProto) -> None:
    model.graph.node.extend([NodeProto(op_type="Relu")] * 20_000)


def long(model: ModelProto) -> None:
    model.graph.node[0].output[0] = "y" * 401


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        (external, "model.graph.initializer", "inside the file; export with external_data=False"),
        (hidden, "model.graph.initializer", "inside the file; export with external_data=False"),
        (negative, "model.graph.initializer", "at least 0"),
        (vast, "model.graph.initializer", r"2\*\*53 elements"),
        (deep, "model.graph", "8 nested graphs"),
        (branching, "model.graph.node[1].op_type", "unsupported op; supported: Abs"),
        (other, "model.graph.node[0].op_type", "'com.microsoft::Gemm' is invalid"),
        (cut, "model.graph.initializer.w", "the shape has 48 bytes"),
        (older, "model.opset_import", "opset 13 to 25"),
        (complex_numbers, "model.graph.initializer.w.data_type", "one of float32"),
        (many, "model.graph.node", "at most 20000 ops"),
        (long, "model.graph", "names of at most 400"),
        (lambda model: model.ClearField("graph"), "model.file", "no graph"),
    ],
)
def test_unsupported_onnx_content_is_named(change: Any, field: str, words: str) -> None:
    model = plain()
    change(model)
    with pytest.raises(InputError, match=words) as caught:
        read_onnx(written(model))
    assert caught.value.field == field


@pytest.mark.parametrize("data", [b"", b"\x00", b"{}", onnx_models()[0][:-3], b"\xff" * 100])
def test_what_is_no_onnx_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match="expected an ONNX file"):
        read_onnx(data)


def test_files_that_are_not_there_or_too_large_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path, tmp_path / "none.onnx", Path("\x00")):
        with pytest.raises(InputError, match="expected a readable file"):
            read_onnx_file(path)
    monkeypatch.setattr(onnx, "MAX_FILE_BYTES", 10)
    with pytest.raises(InputError, match="at most 10 bytes"):
        read_onnx(written(plain()))


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("model.onnx", "model"),
        ("/there/resnet50-v1.5.onnx", "resnet50-v1.5"),
        ("C:\\there\\bert_base.onnx", "bert_base"),
        ("My model (2).onnx", "My-model-2-"),
        ("Größe.onnx", "Gr-e"),
        (".onnx", "onnx"),
        ("模型.onnx", None),
        ("", None),
        ("a" * 100, "a" * 64),
    ],
)
def test_a_model_is_called_as_its_file_in_letters_that_every_name_may_have(file: str, name: str | None) -> None:
    assert model_name(file) == name


def test_the_process_has_no_more_memory_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = plain()
    model.graph.initializer[0].raw_data = bytes(100 * 2**20)
    monkeypatch.setattr(onnx, "MEMORY_BYTES", 128 * 2**20)
    with pytest.raises(InputError, match="bytes of memory"):
        read_onnx(written(model))


def test_the_process_has_no_more_time_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = plain()
    node = NodeProto(op_type="Relu", attribute=[AttributeProto(name="a")] * 150)
    model.graph.node.extend([node] * 12_000)
    monkeypatch.setattr(onnx, "CPU_S", 1)
    with pytest.raises(InputError, match="s of CPU time"):
        read_onnx(written(model))
