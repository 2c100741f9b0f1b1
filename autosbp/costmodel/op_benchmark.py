"""Runs one op from its key, so that a calibration can time it.

A key is the canonical JSON text (``autosbp.utils.json_io.canonical``) of ``{"op": NAME, "args": [...], "kwargs":
{...}}``. A tensor is ``{"t": shape, "d": dtype, "g": requires grad, "hi": exclusive upper bound of integers}`` (``g``
and ``hi`` are optional; integers are then 0 or 1), a dtype is ``{"dtype": name}``, a number that JSON lacks is ``{"float":
"Infinity"}``; everything else is plain JSON.
Values are random from a fixed seed, drawn on the device. This module imports torch; only code that measures imports it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import torch

from autosbp.errors import InputError
from autosbp.graph.to_fx import resolve_op
from autosbp.utils.json_io import NON_FINITE, Fields, loads

NAMESPACES = ("aten", "autosbp")
_DTYPES = {
    name: getattr(torch, name)
    for name in ("float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
}


MAX_COPIES = 32
Call = Callable[[], object]
_MAX_QUEUED_CALLS = 64
"""Calls of a few kernels each that fit into a GPU's launch queue."""
_LAUNCH_S, _TRIES, _CYCLES_PER_S = 1e-4, 3, 2e9
"""First estimate of the host's launch time per call; maximum number of attempts; upper estimate of a GPU's clock rate."""


def prepare_op(key: str, device: str = "cpu", spread_bytes: int = 0) -> tuple[Call, Call]:
    """Forward and backward of the op of ``key`` as calls to time, with inputs already on ``device``.

    The op has run once when this returns. Forward records the autograd graph as in training; backward computes the
    gradients of every floating-point output on a retained graph, and does nothing if no input requires a gradient.

    Args:
        spread_bytes: calls rotate over copies that together hold about this much memory (at most ``MAX_COPIES``),
            because the working set of a training step does not fit in caches either.

    Raises:
        InputError: for a malformed key, an op that graphs may not name (``autosbp.graph.allowed_ops``) or of a custom
            library, and an op that rejects its arguments.
    """
    forward, backward, num_bytes = _prepared(key, device)
    copies = min(spread_bytes // max(num_bytes, 1), MAX_COPIES - 1)
    others = [_prepared(key, device) for _ in range(copies)]
    return _round_robin([forward, *(other[0] for other in others)]), _round_robin(
        [backward, *(other[1] for other in others)]
    )


def call_seconds(call: Call, count: int, device: str) -> float:
    """Total seconds of ``count`` consecutive calls.

    On a GPU this is device time without waits for the host, which are rare in a step with ops of such size.
    """
    if device.partition(":")[0] != "cuda":
        started = time.perf_counter()
        for _ in range(count):
            call()
        return time.perf_counter() - started
    return sum(_queued_s(call, min(_MAX_QUEUED_CALLS, count - at)) for at in range(0, count, _MAX_QUEUED_CALLS))


def _queued_s(call: Call, count: int) -> float:
    """Device seconds of these calls by CUDA events.

    A sleep kernel occupies the queue until the host has launched all calls, unless a call itself synchronises with the
    device.
    """
    event: Any = torch.cuda.Event  # untyped in torch
    begin, end = event(enable_timing=True), event(enable_timing=True)
    before_s = _LAUNCH_S * count
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


def _round_robin(calls: list[Call]) -> Call:
    turns = cycle(calls)
    return calls[0] if len(calls) == 1 else lambda: next(turns)()


def _prepared(key: str, device: str) -> tuple[Call, Call, int]:
    """One set of inputs as (forward, backward, bytes of inputs and outputs)."""
    document = Fields(loads(key, "op key"), "op key", ("op", "args", "kwargs"))
    name = document.text("op")
    if name.partition(".")[0] not in NAMESPACES:
        raise InputError("op", name, f"expected NAMESPACE.NAME.OVERLOAD with a namespace of {', '.join(NAMESPACES)}")
    op = resolve_op(name)
    # Drawn on the device: the host takes seconds to draw data that exceeds a GPU's caches.
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
        raise InputError("op key", key, f"expected valid arguments of the op ({error})") from None

    def backward() -> object:
        if not outputs or not inputs:
            return None
        return torch.autograd.grad(outputs, inputs, gradients, retain_graph=True, allow_unused=True)

    held = [*_tensors([args, list(kwargs.values())]), *_tensors(kept)]
    return forward, backward, sum(item.nbytes for item in held)


def _value(item: Any, path: str, generator: torch.Generator, device: str) -> Any:
    if isinstance(item, list):
        return [_value(entry, f"{path}[{index}]", generator, device) for index, entry in enumerate(item)]
    if not isinstance(item, dict):
        return item
    if "dtype" in item:
        return _DTYPES[Fields(item, path, ("dtype",)).text("dtype", choices=tuple(_DTYPES))]
    if "float" in item:
        return NON_FINITE[Fields(item, path, ("float",)).text("float", choices=tuple(NON_FINITE))]
    fields = Fields(item, path, ("t", "d", "g", "hi"))
    shape = list(fields.sequence("t"))
    for size in shape:
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise InputError(fields.at("t"), shape, "expected a list of sizes of at least 0")
    dtype = _DTYPES[fields.text("d", choices=tuple(_DTYPES))]
    try:
        if dtype.is_floating_point:
            tensor = torch.randn(shape, generator=generator, device=device).to(dtype)
        else:
            high = fields.integer("hi", 2, low=1)
            tensor = torch.randint(high, shape, generator=generator, device=device).to(dtype)
    except RuntimeError as error:
        raise InputError(fields.at("t"), shape, f"expected a shape that fits in memory ({error})") from None
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
