"""Numbers of the whole batch that microbatches divide by, such as its labels: ``sbp.whole_batch`` tells which.

Every rank has the whole batch, so that each makes them itself, before the first pass of a step: no message is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from autosbp.executor.runtime import current
from autosbp.graph.ir import Input, LogicalGraph, Ref
from autosbp.graph.materialise import dtype_of, materialise
from autosbp.sbp.whole_batch import Denominator, made_of


class Denominators:
    """Those of a graph.

    Args:
        graph: bound at the microbatch; a pipeline's chunk has those of its own divisions.
        denominators: by the divisions that they are for, of ``sbp.whole_batch.Parts``.
        micro_batch: samples of a microbatch.
        num_micro: microbatches of a step.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        denominators: Mapping[str, Denominator],
        micro_batch: int,
        num_micro: int,
        device: torch.device,
    ) -> None:
        self._size, self._count = micro_batch, num_micro
        here = {node.name: node.outputs[0].dtype for node in graph.nodes if node.name in denominators}
        self.names = frozenset(here) if num_micro > 1 else frozenset()
        self._programs = [
            (name, dtype_of(here[name]), _Program(graph, denominators[name], device)) for name in sorted(self.names)
        ]

    def of(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """By division: that of the whole batch, by the number of microbatches; of the dtype of the quotient."""
        parts = [
            {name: each[at * self._size : (at + 1) * self._size] for name, each in batch.items()}
            for at in range(self._count)
        ]
        with torch.no_grad():
            return {name: (program.of(parts) / self._count).to(dtype) for name, dtype, program in self._programs}


class _Program:
    """One denominator: sums of what microbatches have, and what is made of these."""

    def __init__(self, graph: LogicalGraph, denominator: Denominator, device: torch.device) -> None:
        self._times, self._is_sum = denominator.times, denominator.ref in denominator.sums
        sums = sorted(denominator.sums, key=lambda ref: ref.name)
        parts = [_made(graph, ref) for ref in sums]
        self._sums = [([leaf.name for leaf in part.inputs], materialise(part).to(device)) for part in parts]
        self._made = materialise(_made(graph, denominator.ref, sums)).to(device)

    def of(self, parts: Sequence[Mapping[str, torch.Tensor]]) -> torch.Tensor:
        """Of the whole batch, which is given as its microbatches, ``times`` as much."""
        sums = []
        for inputs, program in self._sums:
            found = [program(*(part[name] for name in inputs)) for part in parts]
            whole = torch.stack([each.double() for each in found]).sum(0) / self._times
            sums.append(whole if self._is_sum else whole.to(found[0].dtype))
        made: torch.Tensor = self._made(*sums)
        return self._times * made.double()


def _made(graph: LogicalGraph, ref: Ref, given: Sequence[Ref] = ()) -> LogicalGraph:
    """What makes one value out of the batch, or out of what is ``given``, in this order."""
    nodes = made_of(graph, (ref,), given)
    read = {ref.name, *(each.name for node in nodes for each in node.refs())}
    inputs = tuple(leaf for leaf in graph.inputs if leaf.name in read)
    return LogicalGraph(
        graph.name,
        {},
        (),
        (*(Input(each.name, graph.meta(each)) for each in given), *inputs),
        tuple(leaf for leaf in graph.constants if leaf.name in read),
        nodes,
        ref,
    )


def whole_denominator(own: torch.Tensor, name: str) -> torch.Tensor:
    """In a program: what the division ``name`` divides by, in the place of the microbatch's own."""
    return current().denominators.get(name, own)
