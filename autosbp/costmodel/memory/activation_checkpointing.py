"""Activation checkpointing on meta tensors; mirrors ``executor.activation_checkpointing``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autosbp.costmodel.memory.autograd import GradientLeaf, MetaAutograd
from autosbp.costmodel.memory.meta_tensors import MetaTensor
from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.program.activation_checkpointing import ReadKey, Segment, receives_gradient

Run = Callable[..., None]
"""(first item, last item, values, ``again``); see ``StepRun.run_items``."""


class MetaCheckpointing:
    """Runs segments of a program: forward saves their inputs, backward recomputes them.

    Args:
        m: records saved tensors.
        graph: the program's graph.
        run: runs items.
        last_reader: values by the item that reads them last.
    """

    def __init__(
        self, m: MetaAutograd, graph: LogicalGraph, run: Run, last_reader: Mapping[int, Sequence[ReadKey]]
    ) -> None:
        self.m, self.graph, self._run, self._last_reader = m, graph, run, last_reader
        self._anchor = m.new((), 0)
        self._anchor.node = GradientLeaf(lambda _: None)

    def run(self, segment: Segment, values: dict[ReadKey, MetaTensor]) -> None:
        """Run a segment forward: takes its inputs from ``values`` and adds its outputs."""
        m, graph = self.m, self.graph
        reads = {key: values[key] for key in segment.reads}
        inside = dict(reads)
        m.is_recording = False
        self._run(segment.first, segment.last, inside, again=False)
        m.is_recording = True
        made = {key: inside[key] for key in segment.outputs}
        del inside
        own = {Ref(name) for name in segment.own}
        keys = [key for key in reads if key not in own]
        owned: dict[ReadKey, MetaTensor] = {key: reads[key] for key in reads if key in own}
        flows = [reads[key].node is not None for key in keys]
        outs = [key for key in segment.outputs if receives_gradient(graph, key)]
        # Backward empties this list of used values, so that they live as long as torch's saved tensors.
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
        kept: Mapping[ReadKey, MetaTensor],
        flows: Sequence[bool],
        owned: Mapping[ReadKey, MetaTensor],
    ) -> list[MetaTensor | None]:
        found: dict[ReadKey, MetaTensor] = {}
        given = [each.storage for each in grads if each is not None]

        def end(key: ReadKey) -> GradientLeaf:
            # A leaf copies a gradient that somebody else holds, such as one that a sum passes on from the outside.
            return GradientLeaf(
                lambda grad: found.update({key: self.m.empty_like(grad) if grad.storage in given else grad})
            )

        values: dict[ReadKey, MetaTensor] = dict(owned)
        for (key, tensor), flow in zip(kept.items(), flows, strict=True):
            values[key] = tensor.view(tensor.shape, tensor.strides)
            if flow:
                values[key].node = end(key)
        self._run(segment.first, segment.last, values, again=True)
        made = [values[key] for key in outs]
        values.clear()
        self.m.backward_many(made, list(grads))
        return [None, *(found.pop(key, None) for key in kept)]
