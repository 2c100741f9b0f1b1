"""Strict reading of a graph document, field by field; used by ``serialize.from_dict``."""

from __future__ import annotations

import re
from math import isfinite, prod
from typing import Any

from autosbp.errors import GraphError
from autosbp.graph.constants import decode_bytes
from autosbp.graph.custom_functions import LIBRARY, CustomFunction, read_functions
from autosbp.graph.discovered_rules import DiscoveredRule, read_rules
from autosbp.graph.document_folding import unfold_nodes
from autosbp.graph.ir import (
    DTYPE_BYTES,
    FLOAT8,
    FLOATS,
    SCHEMA,
    Arg,
    Constant,
    DType,
    Input,
    LogicalGraph,
    Node,
    Parameter,
    ParameterMeta,
    Ref,
    Sym,
    TensorMeta,
)
from autosbp.graph.symbolic_dims import MAX_DIM_SIZE, Dim, symbols_of
from autosbp.utils.json_io import MAX_INT, NON_FINITE, Fields

MAX_NODES = 200_000
MAX_NDIM = 12
MAX_CONSTANT_BYTES = 64 * 2**20
MAX_CONSTANTS_BYTES = 256 * 2**20
MAX_DEPTH = 8
_TRANSFORMS = {"t": 0, "slice": 3, "blocks": 4}
_TRANSFORM_FORMS = (
    'expected ["slice", dim, start, stop] or ["blocks", dim, count, start, stop] with start < stop, or ["t"]'
)
_TRAINING_DTYPES = ("gradient_dtype", "optimizer_dtype", "product_dtype")
_PRODUCT_DTYPES = (FLOAT8,)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,255}")


class Reader:
    """Reader of one document; ``metas`` holds the values read so far, the only ones that a reference may name."""

    def __init__(self, data: object) -> None:
        self.fields = Fields(
            data,
            "",
            (
                "schema",
                "name",
                "symbols",
                "parameters",
                "inputs",
                "constants",
                "rules",
                "functions",
                "nodes",
                "loss",
                "provenance",
            ),
            SCHEMA,
        )
        self.symbols: dict[str, int] = {}
        self.metas: dict[str, tuple[TensorMeta, ...]] = {}
        self.rules: dict[str, DiscoveredRule] = {}
        self.functions: dict[str, CustomFunction] = {}
        self.constant_bytes = 0

    def read(self) -> LogicalGraph:
        """Read the whole graph; raise ``InputError`` at the first field that breaks a rule."""
        fields = self.fields
        symbols = Fields(fields.mapping("symbols", {}), "symbols", fields.mapping("symbols", {}))
        for name in symbols.data:
            symbols_of(name)
            self.symbols[name] = symbols.integer(name, low=1, high=MAX_DIM_SIZE)
        parameters = tuple(self._parameter(entry, index) for index, entry in enumerate(fields.sequence("parameters")))
        inputs = tuple(self._input(entry, index) for index, entry in enumerate(fields.sequence("inputs")))
        constants = tuple(self._constant(entry, index) for index, entry in enumerate(fields.sequence("constants", [])))
        self.rules = read_rules(fields.mapping("rules", {}))
        self.functions = read_functions(fields.mapping("functions", {}), DTYPE_BYTES)
        entries = unfold_nodes(fields.sequence("nodes"), MAX_NODES)
        nodes = tuple(self._node(entry, index) for index, entry in enumerate(entries))
        loss = self._arg(fields.raw("loss"), "loss")
        if not isinstance(loss, Ref):
            raise GraphError("loss", fields.raw("loss"), 'expected a reference such as {"ref": "loss"}')
        meta = self.metas[loss.name][loss.index]
        if meta.shape != () or not meta.is_float:
            raise GraphError("loss", list(meta.shape), "expected a float scalar")
        provenance = {str(key): str(value) for key, value in fields.mapping("provenance", {}).items()}
        name = fields.text("name")
        return LogicalGraph(
            name, self.symbols, parameters, inputs, constants, nodes, loss, provenance, self.rules,
            functions=self.functions,
        )  # fmt: skip

    def _parameter(self, entry: object, index: int) -> Parameter:
        path = f"parameters[{index}]"
        names = ("name", "shape", "dtype", "source", "transforms", "trained", *_TRAINING_DTYPES)
        fields = Fields(entry, path, names)
        name, meta = self._name(fields), self._meta(fields)
        if any(map(fields.has, _TRAINING_DTYPES)):
            widest = tuple(sorted(FLOATS)) if meta.is_float else (meta.dtype,)
            gradient = fields.text("gradient_dtype", meta.dtype, choices=widest)
            optimizer = fields.text("optimizer_dtype", "float32", choices=widest)
            product = fields.text("product_dtype", choices=_PRODUCT_DTYPES) if fields.has("product_dtype") else ""
            meta = ParameterMeta(meta.shape, meta.dtype, gradient, optimizer, product)
        if any(isinstance(dim, str) for dim in meta.shape):
            raise GraphError(f"{path}.shape", list(meta.shape), "expected a shape without symbolic dims")
        self.metas[name] = (meta,)
        transforms = tuple(self._transform(step, f"{path}.transforms") for step in fields.sequence("transforms", ()))
        return Parameter(name, meta, fields.text("source", name), transforms, fields.boolean("trained", True))

    def _transform(self, step: object, path: str) -> tuple[Any, ...]:
        kind, *numbers = step if isinstance(step, (list, tuple)) and step else (None,)
        wanted = _TRANSFORMS.get(kind) if isinstance(kind, str) else None
        if len(numbers) == wanted and all(type(number) is int and 0 <= number <= MAX_INT for number in numbers):
            counted = not numbers or (numbers[0] < MAX_NDIM and numbers[-2] < numbers[-1])
            if counted and (kind != "blocks" or numbers[1]):
                return (kind, *numbers)
        raise GraphError(path, step, _TRANSFORM_FORMS)

    def _input(self, entry: object, index: int) -> Input:
        fields = Fields(entry, f"inputs[{index}]", ("name", "shape", "dtype", "high"))
        name, meta = self._name(fields), self._meta(fields)
        self.metas[name] = (meta,)
        return Input(name, meta, fields.integer("high", low=1) if fields.has("high") else None)

    def _constant(self, entry: object, index: int) -> Constant:
        path = f"constants[{index}]"
        fields = Fields(entry, path, ("name", "shape", "dtype", "data"))
        name, meta = self._name(fields), self._meta(fields)
        if any(isinstance(dim, str) for dim in meta.shape) or meta.num_bytes > MAX_CONSTANT_BYTES:
            raise GraphError(
                f"{path}.shape", list(meta.shape), (f"expected fixed sizes of at most {MAX_CONSTANT_BYTES} bytes")
            )
        self.constant_bytes += meta.num_bytes
        if self.constant_bytes > MAX_CONSTANTS_BYTES:
            raise GraphError("constants", self.constant_bytes, f"expected at most {MAX_CONSTANTS_BYTES} bytes in total")
        data = fields.raw("data")
        if not isinstance(data, str) or len(decode_bytes(data, meta.num_bytes, path)) != meta.num_bytes:
            raise GraphError(f"{path}.data", "...", f"expected base64 of zlib of exactly {meta.num_bytes} bytes")
        self.metas[name] = (meta,)
        return Constant(name, meta, data)

    def _node(self, entry: object, index: int) -> Node:
        path = f"nodes[{index}]"
        fields = Fields(entry, path, ("name", "op", "args", "kwargs", "outputs", "rule"))
        name, op = self._name(fields), fields.text("op")
        args = tuple(self._arg(arg, f"{path}.args[{at}]") for at, arg in enumerate(fields.sequence("args")))
        kwargs = {str(key): self._arg(arg, f"{path}.kwargs.{key}") for key, arg in fields.mapping("kwargs", {}).items()}
        outputs = tuple(
            self._meta(Fields(meta, f"{path}.outputs[{at}]", ("shape", "dtype")))
            for at, meta in enumerate(fields.sequence("outputs"))
        )
        if op.partition(".")[0] == LIBRARY and op not in self.functions:
            raise GraphError(f"{path}.op", op, f"functions of the graph are {', '.join(self.functions) or 'none'}")
        if not outputs:
            raise GraphError(f"{path}.outputs", [], "expected at least one output")
        rule = fields.text("rule") if fields.has("rule") else ""
        if rule and rule not in self.rules:
            raise GraphError(
                f"{path}.rule", rule, (f"expected one of the graph's rules: {', '.join(self.rules) or 'none'}")
            )
        self.metas[name] = outputs
        return Node(name, op, args, kwargs, outputs, rule)

    def _name(self, fields: Fields) -> str:
        name = fields.text("name")
        if not _NAME.fullmatch(name):
            raise GraphError(fields.at("name"), name, "expected at most 256 letters, digits, _ and .")
        if name in self.metas:
            raise GraphError(fields.at("name"), name, "expected a unique name")
        return name

    def _meta(self, fields: Fields) -> TensorMeta:
        shape: list[Dim] = []
        for at, dim in enumerate(fields.sequence("shape")):
            field = f"{fields.at('shape')}[{at}]"
            if isinstance(dim, str):
                for symbol in symbols_of(dim):
                    if symbol not in self.symbols:
                        raise GraphError(
                            field, dim, (f"undeclared symbol; declared symbols: {', '.join(self.symbols) or 'none'}")
                        )
                shape.append(dim)
            elif isinstance(dim, int) and not isinstance(dim, bool) and 0 <= dim <= MAX_DIM_SIZE:
                shape.append(dim)
            else:
                raise GraphError(field, dim, f"expected an integer in [0, {MAX_DIM_SIZE}] or a symbolic dim")
        if len(shape) > MAX_NDIM:
            raise GraphError(fields.at("shape"), shape, f"expected at most {MAX_NDIM} dims")
        if prod(dim for dim in shape if isinstance(dim, int)) > MAX_INT:
            raise GraphError(fields.at("shape"), shape, f"expected at most {MAX_INT} elements")
        return TensorMeta(tuple(shape), fields.text("dtype", choices=tuple(DTYPE_BYTES)))

    def _arg(self, arg: object, path: str, depth: int = 0) -> Arg:
        if depth > MAX_DEPTH:
            raise GraphError(path, "...", f"expected at most {MAX_DEPTH} nested lists")
        if isinstance(arg, (list, tuple)):
            return tuple(self._arg(item, f"{path}[{at}]", depth + 1) for at, item in enumerate(arg))
        if isinstance(arg, dict):
            return self._special(arg, path)
        if arg is None or isinstance(arg, (bool, str)) or (isinstance(arg, float) and isfinite(arg)):
            return arg
        if isinstance(arg, int) and -(2**63) <= arg < 2**63:
            return arg
        raise GraphError(path, arg, "expected null, a boolean, a finite number, a string, a list or a reference")

    def _special(self, arg: dict[Any, Any], path: str) -> Ref | Sym | DType | float:
        """A reference, a symbolic integer, a dtype or a number that JSON lacks."""
        keys = set(arg)
        if "ref" in keys and keys <= {"ref", "out"}:
            return self._ref(arg["ref"], arg.get("out", 0), path)
        if keys == {"sym"} and isinstance(arg["sym"], str):
            if not symbols_of(arg["sym"]) <= set(self.symbols):
                raise GraphError(
                    path, arg["sym"], (f"undeclared symbol; declared symbols: {', '.join(self.symbols) or 'none'}")
                )
            return Sym(arg["sym"])
        if keys == {"dtype"}:
            if not isinstance(arg["dtype"], str) or arg["dtype"] not in DTYPE_BYTES:
                raise GraphError(path, arg["dtype"], f"expected one of {', '.join(DTYPE_BYTES)}")
            return DType(arg["dtype"])
        if keys == {"float"}:
            if not isinstance(arg["float"], str) or arg["float"] not in NON_FINITE:
                raise GraphError(path, arg["float"], f"expected one of {', '.join(NON_FINITE)}")
            return NON_FINITE[arg["float"]]
        limit = 'expected {"ref": name}, {"sym": expression}, {"dtype": name} or {"float": "Infinity"}'
        raise GraphError(path, arg, limit)

    def _ref(self, name: object, index: object, path: str) -> Ref:
        if not isinstance(name, str) or name not in self.metas:
            raise GraphError(
                path, name, ("expected an earlier node, parameter, input or constant (cycles are not allowed)")
            )
        if type(index) is not int or not 0 <= index < len(self.metas[name]):
            raise GraphError(path, index, f"expected an output of {name}, which has {len(self.metas[name])}")
        return Ref(name, index)
