"""Linear ops with deferred weight gradients on meta tensors; mirrors ``executor.deferred_wgrad`` line by line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autosbp.costmodel.memory.autograd import BackwardHook, GradientLeaf, MetaAutograd
from autosbp.costmodel.memory.matmul import linear
from autosbp.costmodel.memory.meta_tensors import MetaTensor, Shape

Sink = Callable[[MetaTensor], None]
"""Receives a gradient."""
Call = tuple[MetaTensor, MetaTensor, list[tuple[Shape, Sink]]]
"""(input of an op, gradient of its output, (shape, sink) of each parameter with a gradient)."""


class DeferredWgrads:
    """Weight gradients that the backward passes of a chunk defer."""

    def __init__(self, m: MetaAutograd) -> None:
        self.m = m
        self._anchor = m.new((), 0)
        self._anchor.node = GradientLeaf(lambda _: None)
        self._calls: list[Call | BackwardHook] = []

    def linear(self, x: MetaTensor, parameters: Sequence[MetaTensor], sinks: Sequence[Sink | None]) -> MetaTensor:
        """Run the op; ``sinks`` receive the gradients of its parameters, None where no gradient is needed."""
        m = self.m
        records, m.is_recording = m.is_recording, False
        out = linear(m, x, parameters[0], parameters[1] if len(parameters) > 1 else None)
        m.is_recording = records
        wanted = [(each.shape, sink) for each, sink in zip(parameters, sinks, strict=True) if sink is not None]
        shape = None if x.node is None else x.shape

        def run(grads: list[Any], kept: Sequence[Any]) -> list[MetaTensor | None]:
            self._calls.append((kept[0], grads[0], wanted))
            return [None, None if shape is None else m.new(shape, grads[0].width)]

        m.record([out], [self._anchor, x], [x], run)
        return out

    def tell(self, notice: BackwardHook) -> None:
        """Queue a hook that runs once everything deferred so far is done."""
        self._calls.append(notice)

    def taken(self) -> list[Call | BackwardHook]:
        """Remove and return what the passes since the last call deferred."""
        calls, self._calls = self._calls, []
        return calls

    def run(self, calls: list[Call | BackwardHook]) -> None:
        """Compute the gradients, one op after another, and free each op's tensors right after it."""
        calls.reverse()
        while calls:
            call = calls.pop()
            if isinstance(call, BackwardHook):
                call.tell()
                continue
            _, gradient, wanted = call
            for shape, sink in wanted:
                sink(self.m.new(shape, gradient.width))
            del gradient, _, call
