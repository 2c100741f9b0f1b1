"""One call of an op: its attributes and tensor arguments, run on whole tensors or on parts of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from autosbp.graph.int_attributes import Path, divide_attribute

Draw = list[torch.Tensor]
"""One value for each tensor argument of a call."""
BeforeRun = Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any]], None]
"""Called with an op and its arguments."""
_before_run: ContextVar[BeforeRun | None] = ContextVar("before_run", default=None)


@contextmanager
def run_hook(before_run: BeforeRun) -> Iterator[None]:
    """Context in which ``before_run`` is called before each run of a call; it rejects the run by raising."""
    token = _before_run.set(before_run)
    try:
        yield
    finally:
        _before_run.reset(token)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor argument. ``tracked`` ones carry a gradient; ``high`` bounds integers, exclusive (None: unknown)."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    tracked: bool = False
    high: int | None = None


@dataclass(frozen=True)
class Call:
    """``op(*args, **kwargs)``, where every ``Slot`` in the arguments stands for a tensor, in order."""

    op: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    tensors: tuple[Tensor, ...]

    def run(self, values: Sequence[torch.Tensor], paths: Sequence[tuple[Path, int]] = ()) -> tuple[torch.Tensor, ...]:
        """The outputs on ``values``, with each integer attribute in ``paths`` divided by the given number of parts."""
        args, kwargs = self.args, self.kwargs
        for path, parts in paths:
            args, kwargs = divide_attribute(args, kwargs, path, parts)
        filled = [_fill(arg, values) for arg in args]
        named = {key: _fill(arg, values) for key, arg in kwargs.items()}
        if (before_run := _before_run.get()) is not None:
            before_run(self.op, filled, named)
        result = self.op(*filled, **named)
        outputs = (result,) if isinstance(result, torch.Tensor) else tuple(result)
        if not all(isinstance(out, torch.Tensor) for out in outputs):
            raise TypeError("only ops that return tensors have layouts")
        return outputs

    def gradients(
        self, values: Sequence[torch.Tensor], incoming: Sequence[torch.Tensor], paths: Sequence[tuple[Path, int]] = ()
    ) -> tuple[tuple[torch.Tensor, ...], list[torch.Tensor]]:
        """Outputs on ``values``, and gradients of the tracked tensors for ``incoming`` gradients (zeros if unused)."""
        leaves = [
            value.detach().requires_grad_(spec.tracked and value.is_floating_point())
            for value, spec in zip(values, self.tensors, strict=True)
        ]
        outputs = self.run(leaves, paths)
        tracked = [leaf for leaf in leaves if leaf.requires_grad]
        pairs = [(out, grad) for out, grad in zip(outputs, incoming, strict=True) if out.requires_grad]
        found: Sequence[torch.Tensor | None] = [None] * len(tracked)
        if pairs and tracked:
            outs, grads = zip(*pairs, strict=True)
            found = torch.autograd.grad(outs, tracked, grads, allow_unused=True)
        zeros = [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(tracked, found, strict=True)]
        return tuple(out.detach() for out in outputs), zeros


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands for a tensor among a call's arguments."""

    index: int


def make_call(
    op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], tensor: Callable[[Any], Tensor | None]
) -> Call:
    """A call from arguments; ``tensor`` describes tensors and returns None for attributes."""
    tensors: list[Tensor] = []

    def place(arg: Any) -> Any:
        if isinstance(arg, (list, tuple)):
            return tuple(place(item) for item in arg)
        found = tensor(arg)
        if found is None:
            return arg
        tensors.append(found)
        return Slot(len(tensors) - 1)

    placed = tuple(place(arg) for arg in args)
    return Call(op, placed, {key: place(arg) for key, arg in kwargs.items()}, tuple(tensors))


def _fill(arg: Any, values: Sequence[torch.Tensor]) -> Any:
    if isinstance(arg, Slot):
        return values[arg.index]
    return [_fill(item, values) for item in arg] if isinstance(arg, tuple) else arg
