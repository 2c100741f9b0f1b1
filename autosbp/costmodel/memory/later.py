"""Linear ops whose weights' gradients come in a pass of their own, without data: ``executor.deferred``, line by line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autosbp.costmodel.memory.autograd import Leaf, Machine, Notice
from autosbp.costmodel.memory.products import linear
from autosbp.costmodel.memory.tensors import Shape, Tensor

Sink = Callable[[Tensor], None]
"""Takes a gradient."""
Call = tuple[Tensor, Tensor, list[tuple[Shape, Sink]]]
"""The input of an op, the gradient of its output, and of its parameters with a gradient the shapes, and where these go."""


class LaterWeights:
    """What the backward passes of a chunk leave to do."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self._anchor = m.new((), 0)
        self._anchor.node = Leaf(lambda _: None)
        self._calls: list[Call | Notice] = []

    def linear(self, x: Tensor, parameters: Sequence[Tensor], sinks: Sequence[Sink | None]) -> Tensor:
        """The op; ``sinks`` are those of its parameters, None where no gradient is wanted."""
        m = self.m
        records, m.records = m.records, False
        out = linear(m, x, parameters[0], parameters[1] if len(parameters) > 1 else None)
        m.records = records
        wanted = [(each.shape, sink) for each, sink in zip(parameters, sinks, strict=True) if sink is not None]
        shape = None if x.node is None else x.shape

        def run(grads: list[Any], kept: Sequence[Any]) -> list[Tensor | None]:
            self._calls.append((kept[0], grads[0], wanted))
            return [None, None if shape is None else m.new(shape, grads[0].width)]

        m.record([out], [self._anchor, x], [x], run)
        return out

    def tell(self, notice: Notice) -> None:
        """Tell when what was left up to here is done."""
        self._calls.append(notice)

    def taken(self) -> list[Call | Notice]:
        """What the passes since the last call left."""
        calls, self._calls = self._calls, []
        return calls

    def run(self, calls: list[Call | Notice]) -> None:
        """The gradients, one op after another; what each needs goes with it."""
        calls.reverse()
        while calls:
            call = calls.pop()
            if isinstance(call, Notice):
                call.tell()
                continue
            _, gradient, wanted = call
            for shape, sink in wanted:
                sink(self.m.new(shape, gradient.width))
            del gradient, _, call
