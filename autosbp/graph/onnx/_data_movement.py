"""ONNX ops that move, select or create elements, implemented in torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from autosbp.graph.onnx._call import OnnxCall, host_from_sizes, is_host
from autosbp.graph.onnx._pointwise import Op

_DTYPES = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64, 9: torch.bool,
    10: torch.float16, 11: torch.float64, 16: torch.bfloat16,
}  # fmt: skip
_WHOLE = 2**62
"""Slice ends from this value on mean the end of the dim."""


def _sizes(call: OnnxCall, at: int) -> list[Any]:
    found = call.ints(at)
    if found is None:
        raise call.refused(f"input[{at}]", None, "expected sizes")
    return found


def _reshape(call: OnnxCall) -> Any:
    source, sizes = call.tensor(0), _sizes(call, 1)
    if not call.integer("allowzero", 0):
        sizes = [source.shape[at] if type(size) is int and size == 0 else size for at, size in enumerate(sizes)]
    return source.reshape(sizes)


def _flatten(call: OnnxCall) -> Any:
    source, axis = call.tensor(0), call.integer("axis", 1)
    if not -source.dim() <= axis <= source.dim():
        raise call.refused("axis", axis, f"expected a dim of {source.dim()}")
    axis = axis + source.dim() if axis < 0 else axis
    if axis == 0:
        return source.reshape(1, -1)
    source = source.flatten(0, axis - 1)
    return source.flatten(1) if source.dim() > 1 else source.unsqueeze(1)


def _transpose(call: OnnxCall) -> Any:
    source = call.tensor(0)
    return source.permute(call.listed("perm") or list(reversed(range(source.dim()))))


def _squeeze(call: OnnxCall) -> Any:
    source, axes = call.tensor(0), call.listed("axes", 1)
    if axes is None:
        axes = [at for at, size in enumerate(source.shape) if type(size) is int and size == 1]
    return source.squeeze([call.dim(axis, source.dim()) for axis in axes])


def _unsqueeze(call: OnnxCall) -> Any:
    source, axes = call.tensor(0), call.listed("axes", 1) or []
    ndim = source.dim() + len(axes)
    for axis in sorted(call.dim(one, ndim) for one in axes):
        source = source.unsqueeze(axis)
    return source


def _concat(call: OnnxCall) -> Any:
    tensors = [call.tensor(at) for at in range(len(call.operands))]
    return torch.cat(tensors, call.axis(tensors[0].dim(), 0))


def _split(call: OnnxCall) -> Any:
    source = call.tensor(0)
    axis, sizes = call.axis(source.dim(), 0), call.ints(1)
    if sizes is None:
        parts = call.integer("num_outputs", call.num_outputs)
        sizes = [int(part.size) for part in np.array_split(np.zeros(_fixed(call, source, axis)), parts)]
    return torch.split(source, sizes, axis)


def _fixed(call: OnnxCall, source: torch.Tensor, axis: int) -> int:
    size = source.shape[axis]
    if type(size) is not int or size > 2**20:
        raise call.refused("axis", axis, "expected a dim of at most 2**20 that is not the batch")
    return size


def _slice(call: OnnxCall) -> Any:
    source, starts, ends = call.tensor(0), _sizes(call, 1), _sizes(call, 2)
    axes = call.ints(3) or list(range(len(starts)))
    steps = call.ints(4) or [1] * len(starts)
    index: list[Any] = [slice(None)] * source.dim()
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step < 1:
            raise call.refused("input[4]", step, "expected steps of at least 1")
        last = None if type(end) is int and end >= _WHOLE else end
        index[call.dim(axis, source.dim())] = slice(start, last, step)
    return source[tuple(index)]


def _gather(call: OnnxCall) -> Any:
    source, indices = call.tensor(0), call.needed(1)
    axis = call.axis(source.dim(), 0)
    if is_host(indices) and indices.ndim == 0:
        return source.select(axis, call.scalar(1))
    places = call.tensor(1)
    if axis == 0 and source.dim() == 2 and source.is_floating_point():
        return F.embedding(places, source)
    found = source.index_select(axis, places.reshape(-1))
    return found.reshape(*source.shape[:axis], *places.shape, *source.shape[axis + 1 :])


def _gather_elements(call: OnnxCall) -> Any:
    return torch.gather(call.tensor(0), call.axis(call.tensor(0).dim(), 0), call.tensor(1))


def _gather_nd(call: OnnxCall) -> Any:
    if call.integer("batch_dims", 0):
        raise call.refused("batch_dims", call.attributes["batch_dims"], "expected 0")
    return call.tensor(0)[tuple(call.tensor(1).unbind(-1))]


def _scatter_elements(call: OnnxCall) -> Any:
    source, axis = call.tensor(0), call.axis(call.tensor(0).dim(), 0)
    if call.text("reduction", "none", ("none", "add")) == "add":
        return source.scatter_add(axis, call.tensor(1), call.tensor(2))
    return source.scatter(axis, call.tensor(1), call.tensor(2))


def _expand(call: OnnxCall) -> Any:
    source, sizes = call.tensor(0), _sizes(call, 1)
    ndim = max(source.dim(), len(sizes))
    have = [1] * (ndim - source.dim()) + list(source.shape)
    want = [1] * (ndim - len(sizes)) + sizes
    return source.expand([old if type(new) is int and new == 1 else new for old, new in zip(have, want, strict=True)])


def _pad(call: OnnxCall) -> Any:
    source, pads, axes = call.tensor(0), _sizes(call, 1), call.ints(3)
    mode = call.text("mode", "constant", ("constant", "reflect", "edge"))
    begins, ends = [0] * source.dim(), [0] * source.dim()
    dims = [call.dim(axis, source.dim()) for axis in (axes if axes is not None else range(source.dim()))]
    if len(pads) != 2 * len(dims):
        raise call.refused("input[1]", pads, f"expected {2 * len(dims)} sizes")
    for at, dim in enumerate(dims):
        begins[dim], ends[dim] = pads[at], pads[at + len(dims)]
    last = source.dim() if mode == "constant" else source.dim() - 2  # torch reflects spatial dims only
    if any((*begins[: source.dim() - last], *ends[: source.dim() - last])):
        raise call.refused("input[1]", pads, f"mode {mode} supports only padding of spatial dims")
    flat = [size for pair in list(zip(begins, ends, strict=True))[::-1][:last] for size in pair]
    if mode == "constant":
        return F.pad(source, flat, value=call.scalar(2, 0))
    return F.pad(source, flat, mode="reflect" if mode == "reflect" else "replicate")


def _cast(call: OnnxCall) -> Any:
    number = call.integer("to", 1)
    if number not in _DTYPES:
        raise call.refused("to", number, f"expected one of {', '.join(str(one) for one in _DTYPES)}")
    return call.tensor(0).to(_DTYPES[number])


def _full(call: OnnxCall) -> Any:
    value = call.attributes.get("value")
    array = value if isinstance(value, np.ndarray) and value.size else np.zeros(1, np.float32)
    return torch.full(_sizes(call, 0), array.reshape(-1)[0].item(), dtype=getattr(torch, str(array.dtype)))


def _range(call: OnnxCall) -> Any:
    start, limit, step = (call.scalar(at) for at in range(3))
    first = call.host(0)
    dtype = torch.int64 if first is None or first.dtype == object else getattr(torch, str(first.dtype))
    return torch.arange(start, limit, step, dtype=dtype)


def _triangle(call: OnnxCall) -> Any:
    function = torch.triu if call.integer("upper", 1) else torch.tril
    return function(call.tensor(0), int(call.scalar(1, 0)))


def _running_sum(call: OnnxCall) -> Any:
    if call.integer("exclusive", 0) or call.integer("reverse", 0):
        raise call.refused("exclusive", 1, "exclusive and reverse are not supported")
    return torch.cumsum(call.tensor(0), int(call.scalar(1, 0)))


def _top(call: OnnxCall) -> Any:
    axis = call.axis(call.tensor(0).dim(), -1)
    return tuple(torch.topk(call.tensor(0), int(call.scalar(1)), axis, bool(call.integer("largest", 1))))


def _shape(call: OnnxCall) -> Any:
    source = call.needed(0)
    sizes = list(source.shape)
    end = call.integer("end", len(sizes))
    return host_from_sizes(sizes[call.integer("start", 0) : end])


def _size(call: OnnxCall) -> Any:
    total: Any = 1
    for size in call.needed(0).shape:
        total = total * size
    return host_from_sizes([total]).reshape(())


MOVES: Mapping[str, Op] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements,
    "Expand": _expand,
    "Tile": lambda call: call.tensor(0).repeat(_sizes(call, 1)),
    "Pad": _pad,
    "Cast": _cast,
    "CastLike": lambda call: call.tensor(0).to(call.tensor(1).dtype),
    "ConstantOfShape": _full,
    "Range": _range,
    "Trilu": _triangle,
    "CumSum": _running_sum,
    "TopK": _top,
    "Shape": _shape,
    "Size": _size,
}
