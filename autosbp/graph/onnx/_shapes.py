"""Ops on values that are known at capture; exporters compute shapes with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from autosbp.graph.onnx._call import HostValue, OnnxCall

HostOp = Callable[[OnnxCall, list[HostValue]], HostValue | list[HostValue] | None]
"""An op on host values; it returns None if the op has to run on tensors after all."""
_DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "float64",
}  # fmt: skip


def _numpy_op(function: Callable[..., Any]) -> HostOp:
    return lambda _call, values: np.asarray(function(*values))


def _numeric_numpy_op(function: Callable[..., Any]) -> HostOp:
    """Op for a function that does not support symbolic sizes."""
    return lambda _call, values: (
        None if any(value.dtype == object for value in values) else np.asarray(function(*values), values[0].dtype)
    )


def _divide(_call: OnnxCall, values: list[HostValue]) -> HostValue:
    one, two = values
    if one.dtype == object or two.dtype == object or (one.dtype.kind in "iu" and np.all(one * two >= 0)):
        return np.asarray(one // two)
    return np.asarray(one / two if one.dtype.kind == "f" else np.trunc(one / two), one.dtype)


def _cast(call: OnnxCall, values: list[HostValue]) -> HostValue | None:
    name = _DTYPES.get(call.integer("to", 1))
    if values[0].dtype == object:
        return values[0] if name in ("int64", "int32") else None
    return None if name is None else values[0].astype(name)


def _gather(call: OnnxCall, values: list[HostValue]) -> HostValue:
    data, indices = values
    return np.asarray(np.take(data, indices.astype(np.int64), axis=call.axis(data.ndim, 0)))


def _unsqueeze(call: OnnxCall, values: list[HostValue]) -> HostValue:
    axes = call.listed("axes", 1) or []
    return np.expand_dims(values[0], tuple(axes))


def _squeeze(call: OnnxCall, values: list[HostValue]) -> HostValue:
    axes = call.listed("axes", 1)
    return np.squeeze(values[0], None if axes is None else tuple(axes))


def _concat(call: OnnxCall, values: list[HostValue]) -> HostValue:
    return np.concatenate(values, axis=call.axis(values[0].ndim, 0))


def _slice(call: OnnxCall, values: list[HostValue]) -> HostValue | None:
    data, starts, ends = values[:3]
    axes = values[3] if len(values) > 3 else np.arange(starts.size)
    steps = values[4] if len(values) > 4 else np.ones(starts.size, np.int64)
    if any(value.dtype == object for value in (starts, ends)):
        return None
    index = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index[call.dim(int(axis), data.ndim)] = slice(int(start), int(end), int(step))
    return data[tuple(index)]


def _reshape(_call: OnnxCall, values: list[HostValue]) -> HostValue | None:
    data, sizes = values
    return None if sizes.dtype == object or 0 in sizes else data.reshape([int(one) for one in sizes])


def _where(_call: OnnxCall, values: list[HostValue]) -> HostValue:
    condition, one, two = values
    return np.where(condition.astype(bool), one, two)


def _prod(call: OnnxCall, values: list[HostValue]) -> HostValue | None:
    if call.listed("axes", 1) is not None and values[0].ndim != 1:
        return None
    keep = call.integer("keepdims", 1) and values[0].ndim
    return np.asarray(np.prod(values[0]), values[0].dtype).reshape((1,) * values[0].ndim if keep else ())


def _range(_call: OnnxCall, values: list[HostValue]) -> HostValue | None:
    if any(value.dtype == object for value in values):
        return None
    start, limit, step = (value.item() for value in values)
    if not step or (limit - start) / step > 4096:
        return None
    return np.arange(start, limit, step, dtype=values[0].dtype)


def _full(call: OnnxCall, values: list[HostValue]) -> HostValue | None:
    value = call.attributes.get("value")
    fill = value.reshape(-1)[0] if isinstance(value, np.ndarray) and value.size else np.float32(0)
    if values[0].dtype == object or values[0].size > 1 or np.prod(values[0]) > 4096:
        return None  # a larger result is data, not a shape
    return np.full([int(one) for one in values[0]], fill)


HOST_OPS: Mapping[str, HostOp] = {
    "Add": _numpy_op(np.add),
    "Sub": _numpy_op(np.subtract),
    "Mul": _numpy_op(np.multiply),
    "Div": _divide,
    "Neg": _numpy_op(np.negative),
    "Max": _numpy_op(np.maximum),
    "Min": _numpy_op(np.minimum),
    "Sqrt": _numeric_numpy_op(np.sqrt),
    "Pow": _numeric_numpy_op(np.power),
    "Reciprocal": _numeric_numpy_op(np.reciprocal),
    "Floor": _numeric_numpy_op(np.floor),
    "Ceil": _numeric_numpy_op(np.ceil),
    "Equal": _numpy_op(np.equal),
    "Less": _numpy_op(np.less),
    "Greater": _numpy_op(np.greater),
    "Not": _numpy_op(np.logical_not),
    "LessOrEqual": _numpy_op(np.less_equal),
    "GreaterOrEqual": _numpy_op(np.greater_equal),
    "And": _numpy_op(np.logical_and),
    "Or": _numpy_op(np.logical_or),
    "Cast": _cast,
    "Gather": _gather,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Concat": _concat,
    "Slice": _slice,
    "Reshape": _reshape,
    "Where": _where,
    "ReduceProd": _prod,
    "Range": _range,
    "ConstantOfShape": _full,
    "Identity": lambda _call, values: values[0],
}
