"""An ONNX model without its weights: the parsing process's output, validated as strictly as any untrusted document."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from autosbp.errors import InputError
from autosbp.graph.ir import DTYPE_BYTES, FLOATS
from autosbp.graph.onnx._op_names import KNOWN_OPS
from autosbp.utils.json_io import MAX_INT, Fields, check_integer

SCHEMA = "autosbp.onnx/1"
MIN_OPSET, MAX_OPSET = 13, 25
_MAX_NODES = 20_000
_MAX_INPUTS = 15
_MAX_TEXT = 4096
_MAX_LIST = 10_000

Number = int | float
Attribute = Number | str | tuple[Number | str, ...] | np.ndarray[Any, Any] | None


@dataclass(frozen=True, slots=True)
class OnnxTensor:
    """A tensor of the file: a weight if ``data`` is None, else base64 of its zlib-compressed values.

    The dims of a ``transposed`` weight are in reverse order of the file's.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: str | None = None
    transposed: bool = False

    @property
    def is_single(self) -> bool:
        """Whether it is a float tensor of one element and at least one dim: a factor, or a very small weight."""
        return self.dtype in FLOATS and bool(self.shape) and prod(self.shape) == 1

    def values(self) -> np.ndarray[Any, Any]:
        """The values of a tensor that is not a weight."""
        assert self.data is not None
        return _decoded(self.data, self.dtype, self.shape, self.name)


@dataclass(frozen=True, slots=True)
class OnnxInput:
    """An input of the model; each dim is a size or the name of a size."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One op; an omitted input or output has the name ``""``."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A parsed ONNX model; see the module's docstring."""

    name: str
    producer: str
    opset: int
    inputs: tuple[OnnxInput, ...]
    outputs: tuple[str, ...]
    tensors: tuple[OnnxTensor, ...]
    nodes: tuple[OnnxNode, ...]
    document: Mapping[str, Any]

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> Skeleton:
        """Read the document; raise ``InputError`` naming an invalid field."""
        known = ("schema", "name", "producer", "opset", "inputs", "outputs", "tensors", "nodes")
        fields = Fields(document, "model", known, SCHEMA)
        nodes = fields.sequence("nodes")
        if len(nodes) > _MAX_NODES:
            raise InputError("model.graph.node", f"{len(nodes)} ops", f"expected at most {_MAX_NODES} ops")
        opset = fields.integer("opset")
        if not MIN_OPSET <= opset <= MAX_OPSET:
            limit = f"expected opset {MIN_OPSET} to {MAX_OPSET} of the ONNX ops"
            raise InputError("model.opset_import", opset, limit)
        inputs, outputs = fields.sequence("inputs"), fields.sequence("outputs")
        if not 1 <= len(inputs) <= _MAX_INPUTS:
            raise InputError("model.graph.input", f"{len(inputs)} inputs", f"expected 1 to {_MAX_INPUTS}")
        if not outputs:
            raise InputError("model.graph.output", 0, "expected at least one output")
        return Skeleton(
            fields.text("name"),
            fields.text("producer"),
            opset,
            tuple(_batch(one, f"model.graph.input[{at}]") for at, one in enumerate(inputs)),
            _texts(outputs, "model.graph.output"),
            tuple(_tensor(one, f"model.graph.initializer[{at}]") for at, one in enumerate(fields.sequence("tensors"))),
            tuple(_node(one, f"model.graph.node[{at}]") for at, one in enumerate(nodes)),
            document,
        )


def _batch(data: object, path: str) -> OnnxInput:
    fields = Fields(data, path, ("name", "dtype", "shape"))
    shape: list[int | str] = []
    for at, dim in enumerate(fields.sequence("shape")):
        if isinstance(dim, str):
            shape.append(_text(dim, f"{path}.shape[{at}]"))
        else:
            shape.append(check_integer(f"{path}.shape[{at}]", dim, 1, MAX_INT))
    return OnnxInput(fields.text("name"), fields.text("dtype", choices=tuple(DTYPE_BYTES)), tuple(shape))


def _tensor(data: object, path: str) -> OnnxTensor:
    fields = Fields(data, path, ("name", "dtype", "shape", "data"))
    shape = tuple(check_integer(f"{path}.dims", size, 0, MAX_INT) for size in fields.sequence("shape"))
    if prod(shape) > MAX_INT:
        raise InputError(f"{path}.dims", shape, f"at most {MAX_INT} elements are accepted")
    dtype, values = fields.text("dtype", choices=tuple(DTYPE_BYTES)), fields.raw("data", None)
    name = _text(fields.raw("name"), f"{path}.name")
    if values is not None:
        _decoded(values, dtype, shape, path)
    return OnnxTensor(name, dtype, shape, values)


def _decoded(text: object, dtype: str, shape: tuple[int, ...], path: str) -> np.ndarray[Any, Any]:
    num_bytes = prod(shape) * DTYPE_BYTES[dtype]
    try:
        packed = base64.b64decode(text, validate=True)  # type: ignore[arg-type]
        data = zlib.decompressobj().decompress(packed, num_bytes + 1)
    except (TypeError, ValueError, zlib.error) as error:
        raise InputError(path, "...", f"expected base64 of zlib data ({error})") from None
    if len(data) != num_bytes:
        raise InputError(path, f"{len(data)} bytes", f"the shape is of {num_bytes} bytes")
    if dtype == "bfloat16":  # numpy has no bfloat16; its bits are the upper half of a float32's
        wide = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(shape)
    return np.frombuffer(data, np.dtype(dtype)).reshape(shape)


def _node(data: object, path: str) -> OnnxNode:
    fields = Fields(data, path, ("name", "op", "inputs", "outputs", "attributes"))
    op = fields.text("op")
    if op not in KNOWN_OPS:
        raise InputError(f"{path}.op_type", op, f"unsupported op; supported: {', '.join(sorted(KNOWN_OPS))}")
    attributes = fields.mapping("attributes")
    return OnnxNode(
        _text(fields.raw("name"), f"{path}.name"),
        op,
        _texts(fields.sequence("inputs"), f"{path}.input"),
        _texts(fields.sequence("outputs"), f"{path}.output"),
        {str(key): _attribute(one, f"{path}.{key}") for key, one in attributes.items()},
    )


def _attribute(data: object, path: str) -> Attribute:
    if data is None or isinstance(data, (int, float)):
        return data
    if isinstance(data, str):
        return _text(data, path)
    if isinstance(data, list):
        if len(data) > _MAX_LIST:
            raise InputError(path, f"{len(data)} members", f"at most {_MAX_LIST} are accepted")
        return tuple(one if isinstance(one, (int, float)) else _text(one, path) for one in data)
    return _tensor(data, path).values()


def _texts(data: object, path: str) -> tuple[str, ...]:
    assert isinstance(data, (list, tuple))
    return tuple(_text(one, f"{path}[{at}]") for at, one in enumerate(data))


def _text(value: object, path: str) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise InputError(path, value, f"expected text of at most {_MAX_TEXT} characters")
    return value
