"""The process that parses: ``python -m autosbp.graph.onnx._child BYTES SECONDS < FILE``. One JSON object on standard output:
a skeleton (``_skeleton``), or what is refused. Weights are measured, checked and left out; tensors that are no weights (shapes,
indices, masks) are kept with their values."""

from __future__ import annotations

import base64
import json
import math
import resource
import sys
import zlib
from collections.abc import Iterator
from typing import Any

MAX_NODES = 20_000
MAX_TENSORS = 20_000
MAX_DEPTH = 8
MAX_DIMS = 12
MAX_CONSTANT_BYTES = 16 * 2**20
"""Values of all tensors that are no weights."""
NO_PACKAGE = 3
_MAX_NAME = 400
_MAX_LOOKED_AT = 2**22
_SCHEMA = "autosbp.onnx/1"
_FORM = "an ONNX file is expected"
_DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "float64",
    16: "bfloat16",
}  # fmt: skip
_FLOATS = (1, 10, 11, 16)
_SIZES = {1: 4, 2: 1, 3: 1, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 16: 2}


class _RefusedError(Exception):
    """Why a file is not accepted."""

    def __init__(self, field: str, value: object, limit: str) -> None:
        self.said = {"field": field, "value": value, "limit": limit}
        super().__init__()


def main() -> None:
    """Parse standard input within the limits."""
    memory_bytes, cpu_s = int(sys.argv[1]), int(sys.argv[2])
    _limit(resource.RLIMIT_DATA, memory_bytes)
    _limit(resource.RLIMIT_CPU, cpu_s)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)
    try:
        import onnx.inliner
        import onnx.numpy_helper
    except ImportError:
        sys.exit(NO_PACKAGE)
    _limit(resource.RLIMIT_NOFILE, 0)  # no file can be opened from here on: neither external data nor any other
    try:
        said = _Reader(onnx, sys.stdin.buffer.read()).skeleton()
    except _RefusedError as error:
        said = error.said
    except MemoryError:
        said = _refusal(f"at most {memory_bytes} bytes of memory are used to parse it")
    except Exception as error:  # whatever the parser raises, the file is to blame
        said = _refusal(f"{_FORM} ({type(error).__name__}: {_text(str(error))})")
    sys.stdout.write(json.dumps(said))


def _limit(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    least = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (least, least))


def _refusal(limit: str) -> dict[str, object]:
    return {"field": "file", "value": "...", "limit": limit}


class _Reader:
    """One file being read."""

    def __init__(self, onnx: Any, data: bytes) -> None:
        self.onnx, self.constant_bytes = onnx, 0
        model = onnx.ModelProto()
        model.ParseFromString(data)
        if not model.HasField("graph") or not model.ir_version:
            raise _RefusedError("file", None, f"{_FORM}: this has no graph or no IR version")
        self._check(model)
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
            self._check(model)
        self.model = model

    def skeleton(self) -> dict[str, Any]:
        """The document that ``_skeleton.Skeleton.from_dict`` reads."""
        graph = self.model.graph
        if graph.sparse_initializer:
            raise _RefusedError("graph.sparse_initializer", len(graph.sparse_initializer), "dense tensors are expected")
        tensors = [self._tensor(one, "graph.initializer", keep=False) for one in graph.initializer]
        known = {one["name"] for one in tensors}
        return {
            "schema": _SCHEMA,
            "name": _text(graph.name) or "onnx",
            "producer": _text(f"{self.model.producer_name} {self.model.producer_version}".strip()) or "unknown",
            "opset": next((one.version for one in self.model.opset_import if one.domain in ("", "ai.onnx")), 0),
            "inputs": [self._input(one) for one in graph.input if one.name not in known],
            "outputs": [_name(one.name) for one in graph.output],
            "tensors": tensors,
            "nodes": [self._node(node) for node in graph.node],
        }

    def _check(self, model: Any) -> None:
        """Counts, depths and tensors of all graphs within; nothing is made of them."""
        num_nodes = num_tensors = 0
        for graph, depth in self._graphs(model):
            if depth > MAX_DEPTH:
                raise _RefusedError("graph", depth, f"at most {MAX_DEPTH} graphs in each other are accepted")
            num_nodes += len(graph.node)
            num_tensors += len(graph.initializer)
            if num_nodes > MAX_NODES:
                raise _RefusedError("graph.node", f"{num_nodes} ops", f"at most {MAX_NODES} ops are accepted")
            if num_tensors > MAX_TENSORS:
                limit = f"at most {MAX_TENSORS} tensors are accepted"
                raise _RefusedError("graph.initializer", f"{num_tensors} tensors", limit)
            for tensor in graph.initializer:
                self._check_tensor(tensor)
            for sparse in graph.sparse_initializer:
                self._check_tensor(sparse.values)
                self._check_tensor(sparse.indices)

    def _graphs(self, model: Any) -> Iterator[tuple[Any, int]]:
        """The graph, the bodies of functions as graphs of nodes, and the graphs within them, each with its depth."""
        waiting = [(model.graph, 0), *((self.onnx.GraphProto(node=one.node), 0) for one in model.functions)]
        while waiting:
            graph, depth = waiting.pop()
            yield graph, depth
            for node in graph.node:
                for attribute in node.attribute:
                    for tensor in (*([attribute.t] if attribute.HasField("t") else ()), *attribute.tensors):
                        self._check_tensor(tensor)
                    inner = [attribute.g] if attribute.HasField("g") else []
                    waiting += [(each, depth + 1) for each in (*inner, *attribute.graphs)]

    def _check_tensor(self, tensor: Any) -> None:
        name = _text(tensor.name)
        if tensor.data_location == self.onnx.TensorProto.EXTERNAL or tensor.external_data:
            limit = "tensors in the file itself are expected, no external data: export with external_data=False"
            raise _RefusedError("graph.initializer", name, limit)
        if any(dim < 0 for dim in tensor.dims) or math.prod(tensor.dims) > 2**53:
            raise _RefusedError(
                "graph.initializer", name, "sizes of at least 0 and at most 2**53 elements are expected"
            )

    def _input(self, value: Any) -> dict[str, Any]:
        name, kind = _name(value.name), value.type.tensor_type
        if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
            raise _RefusedError(
                f"graph.input.{name}", value.type.WhichOneof("value"), "a tensor with a shape is expected"
            )
        shape = [one.dim_value if one.HasField("dim_value") else _text(one.dim_param) or "?" for one in kind.shape.dim]
        return {"name": name, "dtype": self._dtype(f"graph.input.{name}", kind.elem_type), "shape": shape}

    def _node(self, node: Any) -> dict[str, Any]:
        domain = "" if node.domain in ("", "ai.onnx") else f"{_text(node.domain)}::"
        return {
            "name": _text(node.name),
            "op": domain + (_text(node.op_type) or "?"),
            "inputs": [_name(name) for name in node.input],
            "outputs": [_name(name) for name in node.output],
            "attributes": {_text(one.name): self._attribute(one) for one in node.attribute},
        }

    def _attribute(self, attribute: Any) -> Any:
        """Numbers, texts, lists of them and tensors; None for all else, which no op that is known has."""
        kinds = self.onnx.AttributeProto
        if attribute.type == kinds.TENSOR:
            return self._tensor(attribute.t, f"attribute {_text(attribute.name)}", keep=True)
        if attribute.type == kinds.STRING:
            return _text(attribute.s)
        if attribute.type == kinds.STRINGS:
            return [_text(one) for one in attribute.strings]
        simple = {kinds.INT: "i", kinds.INTS: "ints", kinds.FLOAT: "f", kinds.FLOATS: "floats"}.get(attribute.type)
        if simple is None:
            return None
        value = getattr(attribute, simple)
        numbers = value if simple in ("ints", "floats") else [value]
        if not all(math.isfinite(number) for number in numbers):
            raise _RefusedError(f"attribute {_text(attribute.name)}", str(value), "finite numbers are expected")
        return list(numbers) if numbers is value else value

    def _dtype(self, field: str, number: int) -> str:
        if number not in _DTYPES:
            raise _RefusedError(f"{field}.data_type", number, f"one of {', '.join(_DTYPES.values())} is expected")
        return _DTYPES[number]

    def _tensor(self, tensor: Any, field: str, *, keep: bool) -> dict[str, Any]:
        """Name, dtype and shape; of what is no weight, or is to be kept, the values too."""
        name = _name(tensor.name)
        field = f"{field}.{name}" if name else field
        found = {"name": name, "dtype": self._dtype(field, tensor.data_type), "shape": list(tensor.dims)}
        if len(tensor.dims) > MAX_DIMS:
            raise _RefusedError(field, len(tensor.dims), f"at most {MAX_DIMS} dims are expected")
        num_elements = math.prod(tensor.dims)
        num_bytes = num_elements * _SIZES[tensor.data_type]
        if tensor.HasField("raw_data") and len(tensor.raw_data) != num_bytes:
            raise _RefusedError(field, f"{len(tensor.raw_data)} bytes", f"the shape is of {num_bytes} bytes")
        weight = not keep and tensor.data_type in _FLOATS and len(tensor.dims) > 0 and num_elements != 1
        if weight and num_elements > _MAX_LOOKED_AT:
            self._check_count(tensor, field, num_elements)
            return found
        if not weight and num_bytes > MAX_CONSTANT_BYTES:
            raise _RefusedError(
                field, f"{num_bytes} bytes", f"at most {MAX_CONSTANT_BYTES} bytes of no weights are kept"
            )
        array = self._array(tensor, field)
        if weight and self._is_finite(array):
            return found
        self.constant_bytes += num_bytes
        if self.constant_bytes > MAX_CONSTANT_BYTES:
            limit = f"at most {MAX_CONSTANT_BYTES} bytes of tensors that are no weights are kept"
            raise _RefusedError("graph.initializer", f"{self.constant_bytes} bytes", limit)
        return {**found, "data": base64.b64encode(zlib.compress(array.tobytes(), 6)).decode()}

    def _check_count(self, tensor: Any, field: str, num_elements: int) -> None:
        typed = max(len(tensor.float_data), len(tensor.double_data), len(tensor.int32_data))
        if not tensor.HasField("raw_data") and typed != num_elements:
            raise _RefusedError(field, f"{typed} values", f"the shape is of {num_elements} values")

    def _array(self, tensor: Any, field: str) -> Any:
        try:
            return self.onnx.numpy_helper.to_array(tensor)
        except (ValueError, TypeError) as error:
            raise _RefusedError(
                field, list(tensor.dims), f"values of this shape are expected ({_text(str(error))})"
            ) from None

    def _is_finite(self, array: Any) -> bool:
        """A float tensor with infinities is a mask, not a weight."""
        import numpy as np

        return bool(np.isfinite(array.astype(np.float32)).all())


def _text(text: str | bytes) -> str:
    """A text of printable ASCII; of a long one the beginning. What is no UTF-8 comes as bytes."""
    text = text.decode(errors="backslashreplace") if isinstance(text, bytes) else text
    return text[:_MAX_NAME].encode("unicode_escape").decode()


def _name(name: str | bytes) -> str:
    """A name in printable ASCII; other names stay others."""
    if len(name) > _MAX_NAME:
        raise _RefusedError("graph", _text(name), f"names of at most {_MAX_NAME} characters are expected")
    return _text(name)


if __name__ == "__main__":
    main()
