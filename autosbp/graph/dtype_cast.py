"""Conversion of a graph or a constant to another float dtype, without torch."""

from __future__ import annotations

from dataclasses import replace
from math import copysign, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosbp.graph.constants import decode_bytes, encode_bytes
from autosbp.graph.custom_functions import cast_function
from autosbp.graph.ir import Arg, Constant, DType, LogicalGraph, Node, TensorMeta

MAX_FLOAT = {
    "float64": float(np.finfo(np.float64).max),
    "float32": float(np.finfo(np.float32).max),
    "bfloat16": 2.0**127 * (2 - 2.0**-7),
    "float16": float(np.finfo(np.float16).max),
}
"""The largest finite number of each float dtype."""
_HALF_BITS = 16


def cast_floats(graph: LogicalGraph, old: str, new: str) -> LogicalGraph:
    """Replace dtype ``old`` by ``new`` everywhere, and clamp numbers to the range of ``new``.

    Masks, for example, add the smallest float32, which would become infinite in a narrower dtype.
    """

    def meta(value: TensorMeta) -> TensorMeta:
        return TensorMeta(value.shape, new) if value.dtype == old else value

    def arg(value: Arg) -> Arg:
        return DType(new) if isinstance(value, DType) and value.name == old else clamped(value, new)

    functions = {name: cast_function(function, old, new) for name, function in graph.functions.items()}

    def node(value: Node) -> Node:
        op = functions[value.op].name if value.op in functions else value.op
        return replace(value.map_args(arg), op=op, outputs=tuple(meta(output) for output in value.outputs))

    return replace(
        graph,
        parameters=tuple(replace(leaf, meta=meta(leaf.meta)) for leaf in graph.parameters),
        inputs=tuple(replace(leaf, meta=meta(leaf.meta)) for leaf in graph.inputs),
        constants=tuple(cast_constant(leaf, new) if leaf.meta.dtype == old else leaf for leaf in graph.constants),
        nodes=tuple(map(node, graph.nodes)),
        functions={function.name: function for function in functions.values()},
    )


def clamped(value: Arg, dtype: str) -> Arg:
    """A finite number beyond the range of ``dtype`` as the nearest one in it; anything else as it is."""
    most = MAX_FLOAT[dtype]
    return copysign(most, value) if isinstance(value, float) and most < abs(value) < inf else value


def cast_constant(constant: Constant, dtype: str, name: str = "") -> Constant:
    """A float constant, rounded to the nearest numbers of ``dtype`` (finite ones stay finite), under another name."""
    values = _read(decode_bytes(constant.data, constant.meta.num_bytes), constant.meta.dtype).astype(np.float64)
    most = MAX_FLOAT[dtype]
    values = np.where(np.isfinite(values), np.clip(values, -most, most), values)
    return Constant(name or constant.name, TensorMeta(constant.meta.shape, dtype), encode_bytes(_bytes(values, dtype)))


def _read(data: bytes, dtype: str) -> NDArray[Any]:
    if dtype == "bfloat16":  # numpy has no bfloat16; its bits are the upper half of a float32's
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << _HALF_BITS).view(np.float32)
    return np.frombuffer(data, np.dtype(dtype))


def _bytes(values: NDArray[Any], dtype: str) -> bytes:
    if dtype != "bfloat16":
        return values.astype(np.dtype(dtype)).tobytes()
    single = values.astype(np.float32)
    bits = single.view(np.uint32)
    nearest = bits + np.uint32(0x7FFF) + ((bits >> _HALF_BITS) & np.uint32(1))  # ties to even
    upper = np.where(np.isnan(single), (bits >> _HALF_BITS) | np.uint32(0x40), nearest >> _HALF_BITS)
    return upper.astype(np.uint16).tobytes()
