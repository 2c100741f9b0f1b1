"""ONNX files that people choose: one that is planned, and those that are refused, each with what is said of it."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import ModelProto, TensorProto

from benchmarks.fuzz._corpus import onnx_models


@dataclass(frozen=True)
class Refused:
    """A file, the field that an error names, and some of its words."""

    name: str
    content: bytes
    field: str
    words: str


def good() -> bytes:
    """A perceptron of 15 parameters."""
    return onnx_models()[0]


def external() -> bytes:
    """It keeps a weight elsewhere, in a file that no service may open for it."""
    model = ModelProto.FromString(good())
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    return bytes(model.SerializeToString())


def of_any_width() -> bytes:
    """It parses; that its second dim has no size is found when it is captured."""
    model = ModelProto.FromString(good())
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "width"
    return bytes(model.SerializeToString())


def refused() -> list[Refused]:
    """Each is refused when it is parsed."""
    return [
        Refused("cut.onnx", good()[:-20], "model.file", "expected an ONNX file"),
        Refused("notes.onnx", b"# what I meant to do", "model.file", "expected an ONNX file"),
        Refused("empty.onnx", b"", "model.file", "expected an ONNX file"),
        Refused(
            "apart.onnx", external(), "model.graph.initializer", "inside the file; export with external_data=False"
        ),
        Refused("branch.onnx", onnx_models()[1], "model.graph.node[1].op_type", "unsupported op; supported:"),
    ]
