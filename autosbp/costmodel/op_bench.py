"""Runs one op from its key, so that a calibration can time it.

A key is the canonical JSON text (``autosbp.jsonio.canonical``) of ``{"op": NAME, "args": [...], "kwargs": {...}}``.
A tensor is ``{"t": shape, "d": dtype, "g": requires grad, "hi": exclusive upper bound of integers}`` (``g`` and ``hi``
may be absent; integers are then 0 or 1), a dtype is ``{"dtype": name}``; all else is plain JSON. Values are random from
a fixed seed, drawn on the device. This module imports torch; only what measures imports it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import torch

from autosbp.errors import InputError
from autosbp.jsonio import Fields, loads

NAMESPACES = ("aten", "autosbp")
_OPERATORS = ("__and__", "__or__", "__xor__", "__lshift__", "__rshift__")
_DTYPES = {
    name: getattr(torch, name)
    for name in ("float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
}


MAX_COPIES = 32
Call = Callable[[], object]
_QUEUED = 64
"""Calls that a GPU's queue has room for, of a few kernels each."""
_ASKED_S, _TRIES, _CYCLES_PER_S = 1e-4, 3, 2e9
"""What the host takes to ask for a call, at first; how often it is tried; a GPU's clock, or a faster one's."""


def run_op(key: str, device: str = "cpu", spread_bytes: int = 0) -> tuple[Call, Call]:
    """The forward and the backward of the op of ``key``, as calls to time, with inputs already on ``device``.

    The op has run once when this returns. Forward records the graph as in training; backward reads the gradients of
    every floating-point output from a kept graph, and does nothing when no input requires a gradient. With
    ``spread_bytes``, calls take turns on copies that hold about so much memory together (``MAX_COPIES`` at most): what
    a training step touches does not fit in caches either. Raises ``InputError`` for a malformed key, an op outside
    ``NAMESPACES``, an op that touches files, and an op that refuses its arguments.
    """
    forward, backward, num_bytes = _prepared(key, device)
    copies = min(spread_bytes // max(num_bytes, 1), MAX_COPIES - 1)
    others = [_prepared(key, device) for _ in range(copies)]
    return _in_turn([forward, *(other[0] for other in others)]), _in_turn([backward, *(other[1] for other in others)])


def call_seconds(call: Call, count: int, device: str) -> float:
    """Seconds of ``count`` calls one after the other, all together; of a GPU its own, as if it never waited for the host,
    which in a step of its size it seldom does."""
    if device.partition(":")[0] != "cuda":
        started = time.perf_counter()
        for _ in range(count):
            call()
        return time.perf_counter() - started
    return sum(_queued_s(call, min(_QUEUED, count - at)) for at in range(0, count, _QUEUED))


def _queued_s(call: Call, count: int) -> float:
    """Seconds of these calls by a GPU's events. Its queue has something before them that takes until the host has asked for
    all of them, unless a call waits for the device itself."""
    event: Any = torch.cuda.Event  # untyped in torch
    begin, end = event(enable_timing=True), event(enable_timing=True)
    before_s = _ASKED_S * count
    for _ in range(_TRIES):
        torch.cuda._sleep(round(before_s * _CYCLES_PER_S))  # type: ignore[no-untyped-call]
        started = time.perf_counter()
        begin.record()
        for _ in range(count):
            call()
        end.record()
        asked_s = time.perf_counter() - started
        in_time = not begin.query()
        end.synchronize()
        if in_time:
            break
        before_s = 2 * asked_s
    return float(1e-3 * begin.elapsed_time(end))


def _in_turn(calls: list[Call]) -> Call:
    turns = cycle(calls)
    return calls[0] if len(calls) == 1 else lambda: next(turns)()


def _prepared(key: str, device: str) -> tuple[Call, Call, int]:
    """One set of inputs, and the bytes of these and of the outputs."""
    document = Fields(loads(key, "op key"), "op key", ("op", "args", "kwargs"))
    op = _resolve(document.text("op"))
    # On the device: the host takes seconds for what fills a GPU's caches.
    generator = torch.Generator(device).manual_seed(0)
    args = [_value(item, f"args[{index}]", generator, device) for index, item in enumerate(document.sequence("args"))]
    given = document.mapping("kwargs", {})
    kwargs = {str(name): _value(item, f"kwargs.{name}", generator, device) for name, item in given.items()}

    def forward() -> object:
        return op(*args, **kwargs)

    try:
        kept = forward()
        outputs = [item for item in _tensors(kept) if item.requires_grad]
        inputs = [item for item in _tensors([args, list(kwargs.values())]) if item.requires_grad]
        gradients = [torch.ones_like(item) for item in outputs]
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError) as error:
        raise InputError("op key", key, f"arguments that the op takes are expected ({error})") from None

    def backward() -> object:
        if not outputs or not inputs:
            return None
        return torch.autograd.grad(outputs, inputs, gradients, retain_graph=True, allow_unused=True)

    held = [*_tensors([args, list(kwargs.values())]), *_tensors(kept)]
    return forward, backward, sum(item.nbytes for item in held)


def _resolve(name: str) -> Callable[..., object]:
    parts = name.split(".")
    if len(parts) != 3 or parts[0] not in NAMESPACES:
        raise InputError("op", name, f"NAMESPACE.NAME.OVERLOAD with a namespace of {', '.join(NAMESPACES)} is expected")
    op: Any = torch.ops
    for part in parts:
        op = None if part.startswith("__") and part not in _OPERATORS else getattr(op, part, None)
    if not isinstance(op, torch._ops.OpOverload):
        raise InputError("op", name, "an op that this torch has is expected")
    if any(argument.name == "filename" for argument in op._schema.arguments):
        raise InputError("op", name, "an op that reads or writes no files is expected")
    return op


def _value(item: Any, path: str, generator: torch.Generator, device: str) -> Any:
    if isinstance(item, list):
        return [_value(entry, f"{path}[{index}]", generator, device) for index, entry in enumerate(item)]
    if not isinstance(item, dict):
        return item
    if "dtype" in item:
        return _DTYPES[Fields(item, path, ("dtype",)).text("dtype", choices=tuple(_DTYPES))]
    fields = Fields(item, path, ("t", "d", "g", "hi"))
    shape = list(fields.sequence("t"))
    for size in shape:
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise InputError(fields.at("t"), shape, "a list of sizes of at least 0 is expected")
    dtype = _DTYPES[fields.text("d", choices=tuple(_DTYPES))]
    try:
        if dtype.is_floating_point:
            tensor = torch.randn(shape, generator=generator, device=device).to(dtype)
        else:
            high = fields.integer("hi", 2, low=1)
            tensor = torch.randint(high, shape, generator=generator, device=device).to(dtype)
    except RuntimeError as error:
        raise InputError(fields.at("t"), shape, f"a shape that fits in memory is expected ({error})") from None
    if fields.raw("g", False) is True:
        if not dtype.is_floating_point:
            raise InputError(fields.at("g"), True, "only floating-point tensors have gradients")
        tensor.requires_grad_()
    return tensor


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
