"""The parsing process: ``python -m autosbp.graph.onnx._parser_process BYTES SECONDS < FILE``.

It writes one JSON object to standard output: a skeleton (``_skeleton``), or the reason for refusing the file. Weights
are measured, checked and left out; other tensors (shapes, indices, masks) keep their values.
"""

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
"""Limit of the values of all tensors that are not weights."""
EXIT_NO_ONNX_PACKAGE = 3
_MAX_NAME = 400
_MAX_CHECKED_ELEMENTS = 2**22
_SCHEMA = "autosbp.onnx/1"
_FORM = "expected an ONNX file"
_DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "float64",
    16: "bfloat16",
}  # fmt: skip
_FLOATS = (1, 10, 11, 16)
_SIZES = {1: 4, 2: 1, 3: 1, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 16: 2}


class _RefusedError(Exception):
    """Reason for refusing a file."""

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
        sys.exit(EXIT_NO_ONNX_PACKAGE)
    _limit(resource.RLIMIT_NOFILE, 0)  # from here on no file can be opened, external data included
    try:
        said = _Reader(onnx, sys.stdin.buffer.read()).skeleton()
    except _RefusedError as error:
        said = error.said
    except MemoryError:
        said = _refusal(f"parsing is limited to {memory_bytes} bytes of memory")
    except Exception as error:  # any error of the parser is the file's fault
        said = _refusal(f"{_FORM} ({type(error).__name__}: {_text(str(error))})")
    sys.stdout.write(json.dumps(said))


def _limit(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    least = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (least, least))


def _refusal(limit: str) -> dict[str, object]:
    return {"field": "file", "value": "...", "limit": limit}


class _Reader:
    """Reader of one file."""

    def __init__(self, onnx: Any, data: bytes) -> None:
        self.onnx, self.constant_bytes = onnx, 0
        model = onnx.ModelProto()
        model.ParseFromString(data)
        if not model.HasField("graph") or not model.ir_version:
            raise _RefusedError("file", None, f"{_FORM}; this file has no graph or no IR version")
        self._check(model)
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
            self._check(model)
        self.model = model

    def skeleton(self) -> dict[str, Any]:
        """The document that ``_skeleton.Skeleton.from_dict`` reads."""
        graph = self.model.graph
        if graph.sparse_initializer:
            raise _RefusedError("graph.sparse_initializer", len(graph.sparse_initializer), "expected dense tensors")
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
        """Check counts, depths and tensors of all nested graphs before building anything from them."""
        num_nodes = num_tensors = 0
        for graph, depth in self._graphs(model):
            if depth > MAX_DEPTH:
                raise _RefusedError("graph", depth, f"expected at most {MAX_DEPTH} nested graphs")
            num_nodes += len(graph.node)
            num_tensors += len(graph.initializer)
            if num_nodes > MAX_NODES:
                raise _RefusedError("graph.node", f"{num_nodes} ops", f"expected at most {MAX_NODES} ops")
            if num_tensors > MAX_TENSORS:
                limit = f"expected at most {MAX_TENSORS} tensors"
                raise _RefusedError("graph.initializer", f"{num_tensors} tensors", limit)
            for tensor in graph.initializer:
                self._check_tensor(tensor)
            for sparse in graph.sparse_initializer:
                self._check_tensor(sparse.values)
                self._check_tensor(sparse.indices)

    def _graphs(self, model: Any) -> Iterator[tuple[Any, int]]:
        """The graph, the bodies of functions as graphs of nodes, and their nested graphs, each with its depth."""
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
            limit = "expected tensors inside the file; export with external_data=False"
            raise _RefusedError("graph.initializer", name, limit)
        if any(dim < 0 for dim in tensor.dims) or math.prod(tensor.dims) > 2**53:
            raise _RefusedError("graph.initializer", name, "expected sizes of at least 0 with at most 2**53 elements")

    def _input(self, value: Any) -> dict[str, Any]:
        name, kind = _name(value.name), value.type.tensor_type
        if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
            raise _RefusedError(f"graph.input.{name}", value.type.WhichOneof("value"), "expected a tensor with a shape")
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
        """Numbers, texts, lists of them and tensors; None for other types, which no supported op has."""
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
            raise _RefusedError(f"attribute {_text(attribute.name)}", str(value), "expected finite numbers")
        return list(numbers) if numbers is value else value

    def _dtype(self, field: str, number: int) -> str:
        if number not in _DTYPES:
            raise _RefusedError(f"{field}.data_type", number, f"expected one of {', '.join(_DTYPES.values())}")
        return _DTYPES[number]

    def _tensor(self, tensor: Any, field: str, *, keep: bool) -> dict[str, Any]:
        """Name, dtype and shape of a tensor, and its values unless it is a weight and not ``keep``."""
        name = _name(tensor.name)
        field = f"{field}.{name}" if name else field
        found = {"name": name, "dtype": self._dtype(field, tensor.data_type), "shape": list(tensor.dims)}
        if len(tensor.dims) > MAX_DIMS:
            raise _RefusedError(field, len(tensor.dims), f"expected at most {MAX_DIMS} dims")
        num_elements = math.prod(tensor.dims)
        num_bytes = num_elements * _SIZES[tensor.data_type]
        if tensor.HasField("raw_data") and len(tensor.raw_data) != num_bytes:
            raise _RefusedError(field, f"{len(tensor.raw_data)} bytes", f"the shape has {num_bytes} bytes")
        weight = not keep and tensor.data_type in _FLOATS and len(tensor.dims) > 0 and num_elements != 1
        if weight and num_elements > _MAX_CHECKED_ELEMENTS:
            self._check_count(tensor, field, num_elements)
            return found
        if not weight and num_bytes > MAX_CONSTANT_BYTES:
            raise _RefusedError(
                field,
                f"{num_bytes} bytes",
                (f"expected at most {MAX_CONSTANT_BYTES} bytes for a tensor that is not a weight"),
            )
        array = self._array(tensor, field)
        if weight and self._is_finite(array):
            return found
        self.constant_bytes += num_bytes
        if self.constant_bytes > MAX_CONSTANT_BYTES:
            limit = f"expected at most {MAX_CONSTANT_BYTES} bytes of tensors that are not weights"
            raise _RefusedError("graph.initializer", f"{self.constant_bytes} bytes", limit)
        return {**found, "data": base64.b64encode(zlib.compress(array.tobytes(), 6)).decode()}

    def _check_count(self, tensor: Any, field: str, num_elements: int) -> None:
        typed = max(len(tensor.float_data), len(tensor.double_data), len(tensor.int32_data))
        if not tensor.HasField("raw_data") and typed != num_elements:
            raise _RefusedError(field, f"{typed} values", f"the shape has {num_elements} values")

    def _array(self, tensor: Any, field: str) -> Any:
        try:
            return self.onnx.numpy_helper.to_array(tensor)
        except (ValueError, TypeError) as error:
            raise _RefusedError(
                field, list(tensor.dims), f"expected values of this shape ({_text(str(error))})"
            ) from None

    def _is_finite(self, array: Any) -> bool:
        """Whether a float tensor holds no infinities or NaNs; with infinities it is a mask, not a weight."""
        import numpy as np

        return bool(np.isfinite(array.astype(np.float32)).all())


def _text(text: str | bytes) -> str:
    """Escape a text to printable ASCII and cut it to ``_MAX_NAME``; bytes that are not UTF-8 are escaped, too."""
    text = text.decode(errors="backslashreplace") if isinstance(text, bytes) else text
    return text[:_MAX_NAME].encode("unicode_escape").decode()


def _name(name: str | bytes) -> str:
    """Escape a name to printable ASCII; different names stay different."""
    if len(name) > _MAX_NAME:
        raise _RefusedError("graph", _text(name), f"expected names of at most {_MAX_NAME} characters")
    return _text(name)


if __name__ == "__main__":
    main()
