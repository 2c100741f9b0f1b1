"""Segments that are recomputed, without data: ``executor.again``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autosbp.costmodel.memory.autograd import Leaf, Machine
from autosbp.costmodel.memory.tensors import Tensor
from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.sbp.recompute import ReadKey, Segment, flows_back

Run = Callable[..., None]
"""(first item, last item, values, whether again): ``StepRun.run_items``."""


class Recomputation:
    """Runs segments of a program: forward keeps what they read, backward runs them once more.

    Args:
        m: records what is kept.
        graph: of the program.
        run: runs items.
        last_reader: after which item which values have no reader left.
    """

    def __init__(self, m: Machine, graph: LogicalGraph, run: Run, last_reader: Mapping[int, Sequence[ReadKey]]) -> None:
        self.m, self.graph, self._run, self._last_reader = m, graph, run, last_reader
        self._anchor = m.new((), 0)
        self._anchor.node = Leaf(lambda _: None)

    def run(self, segment: Segment, values: dict[ReadKey, Tensor]) -> None:
        """Forward: takes what the segment reads from ``values``, and puts there what it makes."""
        m, graph = self.m, self.graph
        reads = {key: values[key] for key in segment.reads}
        inside = dict(reads)
        m.records = False
        self._run(segment.first, segment.last, inside, again=False)
        m.records = True
        made = {key: inside[key] for key in segment.makes}
        del inside
        own = {Ref(name) for name in segment.own}
        keys = [key for key in reads if key not in own]
        owned: dict[ReadKey, Tensor] = {key: reads[key] for key in reads if key in own}
        flows = [reads[key].node is not None for key in keys]
        outs = [key for key in segment.makes if flows_back(graph, key)]
        # A list that backward empties of what it has used: torch's saved tensors live as long.
        m.record(
            [made[key] for key in outs],
            [self._anchor, *(reads[key] if flow else None for key, flow in zip(keys, flows, strict=True))],
            [reads[key] for key in keys],
            lambda grads, kept: self._backward(segment, outs, grads, dict(zip(keys, kept, strict=True)), flows, owned),
        )
        values.update(made)
        for at in range(segment.first, segment.last + 1):
            for key in self._last_reader.get(at, ()):
                values.pop(key, None)

    def _backward(
        self,
        segment: Segment,
        outs: Sequence[ReadKey],
        grads: list[Any],
        kept: Mapping[ReadKey, Tensor],
        flows: Sequence[bool],
        owned: Mapping[ReadKey, Tensor],
    ) -> list[Tensor | None]:
        found: dict[ReadKey, Tensor] = {}

        def end(key: ReadKey) -> Leaf:
            return Leaf(lambda gradient: found.update({key: gradient}))

        values: dict[ReadKey, Tensor] = dict(owned)
        for (key, tensor), flow in zip(kept.items(), flows, strict=True):
            values[key] = tensor.view(tensor.shape, tensor.strides)
            if flow:
                values[key].node = end(key)
        self._run(segment.first, segment.last, values, again=True)
        made = [values[key] for key in outs]
        values.clear()
        self.m.backward_of(made, list(grads))
        return [None, *(found.pop(key, None) for key in kept)]
