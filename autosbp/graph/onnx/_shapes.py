"""Ops on values that are known at capture: what exporters compute shapes with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from autosbp.graph.onnx._call import Call, Host

HostOp = Callable[[Call, list[Host]], Host | list[Host] | None]
"""None where the op has to run on tensors after all."""
_DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "float64",
}  # fmt: skip


def _of(function: Callable[..., Any]) -> HostOp:
    return lambda _call, values: np.asarray(function(*values))


def _float_of(function: Callable[..., Any]) -> HostOp:
    """A function that symbolic sizes do not have."""
    return lambda _call, values: (
        None if any(value.dtype == object for value in values) else np.asarray(function(*values), values[0].dtype)
    )


def _divide(_call: Call, values: list[Host]) -> Host:
    one, two = values
    if one.dtype == object or two.dtype == object or (one.dtype.kind in "iu" and np.all(one * two >= 0)):
        return np.asarray(one // two)
    return np.asarray(one / two if one.dtype.kind == "f" else np.trunc(one / two), one.dtype)


def _cast(call: Call, values: list[Host]) -> Host | None:
    name = _DTYPES.get(call.integer("to", 1))
    if values[0].dtype == object:
        return values[0] if name in ("int64", "int32") else None
    return None if name is None else values[0].astype(name)


def _gather(call: Call, values: list[Host]) -> Host:
    data, indices = values
    return np.asarray(np.take(data, indices.astype(np.int64), axis=call.axis(data.ndim, 0)))


def _unsqueeze(call: Call, values: list[Host]) -> Host:
    axes = call.listed("axes", 1) or []
    return np.expand_dims(values[0], tuple(axes))


def _squeeze(call: Call, values: list[Host]) -> Host:
    axes = call.listed("axes", 1)
    return np.squeeze(values[0], None if axes is None else tuple(axes))


def _concat(call: Call, values: list[Host]) -> Host:
    return np.concatenate(values, axis=call.axis(values[0].ndim, 0))


def _slice(call: Call, values: list[Host]) -> Host | None:
    data, starts, ends = values[:3]
    axes = values[3] if len(values) > 3 else np.arange(starts.size)
    steps = values[4] if len(values) > 4 else np.ones(starts.size, np.int64)
    if any(value.dtype == object for value in (starts, ends)):
        return None
    index = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index[call.dim(int(axis), data.ndim)] = slice(int(start), int(end), int(step))
    return data[tuple(index)]


def _reshape(_call: Call, values: list[Host]) -> Host | None:
    data, sizes = values
    return None if sizes.dtype == object or 0 in sizes else data.reshape([int(one) for one in sizes])


def _where(_call: Call, values: list[Host]) -> Host:
    condition, one, two = values
    return np.where(condition.astype(bool), one, two)


def _prod(call: Call, values: list[Host]) -> Host | None:
    if call.listed("axes", 1) is not None and values[0].ndim != 1:
        return None
    keep = call.integer("keepdims", 1) and values[0].ndim
    return np.asarray(np.prod(values[0]), values[0].dtype).reshape((1,) * values[0].ndim if keep else ())


def _range(_call: Call, values: list[Host]) -> Host | None:
    if any(value.dtype == object for value in values):
        return None
    start, limit, step = (value.item() for value in values)
    if not step or (limit - start) / step > 4096:
        return None
    return np.arange(start, limit, step, dtype=values[0].dtype)


def _full(call: Call, values: list[Host]) -> Host | None:
    value = call.attributes.get("value")
    fill = value.reshape(-1)[0] if isinstance(value, np.ndarray) and value.size else np.float32(0)
    if values[0].dtype == object or values[0].size > 1 or np.prod(values[0]) > 4096:
        return None  # what is larger is data, not a shape
    return np.full([int(one) for one in values[0]], fill)


HOST_OPS: Mapping[str, HostOp] = {
    "Add": _of(np.add), "Sub": _of(np.subtract), "Mul": _of(np.multiply), "Div": _divide, "Neg": _of(np.negative),
    "Max": _of(np.maximum), "Min": _of(np.minimum), "Sqrt": _float_of(np.sqrt), "Pow": _float_of(np.power),
    "Reciprocal": _float_of(np.reciprocal), "Floor": _float_of(np.floor), "Ceil": _float_of(np.ceil),
    "Equal": _of(np.equal), "Less": _of(np.less), "Greater": _of(np.greater), "Not": _of(np.logical_not),
    "LessOrEqual": _of(np.less_equal), "GreaterOrEqual": _of(np.greater_equal), "And": _of(np.logical_and),
    "Or": _of(np.logical_or), "Cast": _cast, "Gather": _gather, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze,
    "Concat": _concat, "Slice": _slice, "Reshape": _reshape, "Where": _where, "ReduceProd": _prod, "Range": _range,
    "ConstantOfShape": _full, "Identity": lambda _call, values: values[0],
}  # fmt: skip
