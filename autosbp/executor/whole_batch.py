"""Numbers of the whole batch that microbatches divide by, such as its labels: ``sbp.whole_batch`` tells which.

Every rank has the whole batch, so that each makes them itself, before the first pass of a step: no message is needed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from autosbp.executor.runtime import current
from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.graph.materialise import dtype_of, materialise
from autosbp.sbp.whole_batch import made_of


class Denominators:
    """Those of a graph.

    Args:
        graph: bound at the microbatch; a pipeline's chunk has those of its own divisions.
        denominators: scalars by the divisions that they are for, of ``sbp.whole_batch.Parts``.
        micro_batch: samples of a microbatch.
        num_micro: microbatches of a step.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        denominators: Mapping[str, Ref],
        micro_batch: int,
        num_micro: int,
        device: torch.device,
    ) -> None:
        self._size, self._count = micro_batch, num_micro
        here = {node.name: node.outputs[0].dtype for node in graph.nodes if node.name in denominators}
        self.names = frozenset(here) if num_micro > 1 else frozenset()
        self._programs = []
        for name in sorted(self.names):
            part = _made(graph, denominators[name])
            inputs = [leaf.name for leaf in part.inputs]
            self._programs.append((name, dtype_of(here[name]), inputs, materialise(part).to(device)))

    def of(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """By division: the sum over microbatches, by their number; of the dtype of the quotient."""
        found = {}
        with torch.no_grad():
            for name, dtype, inputs, program in self._programs:
                parts = torch.stack([program(*self._part(batch, inputs, at)).double() for at in range(self._count)])
                found[name] = (parts.sum(0) / self._count).to(dtype)
        return found

    def _part(self, batch: Mapping[str, torch.Tensor], inputs: list[str], at: int) -> list[torch.Tensor]:
        return [batch[name][at * self._size : (at + 1) * self._size] for name in inputs]


def _made(graph: LogicalGraph, ref: Ref) -> LogicalGraph:
    """What makes one value out of the batch."""
    nodes = made_of(graph, (ref,))
    read = {ref.name, *(each.name for node in nodes for each in node.refs())}
    return LogicalGraph(
        graph.name,
        {},
        (),
        tuple(leaf for leaf in graph.inputs if leaf.name in read),
        tuple(leaf for leaf in graph.constants if leaf.name in read),
        nodes,
        ref,
    )


def whole_denominator(own: torch.Tensor, name: str) -> torch.Tensor:
    """In a program: what the division ``name`` divides by, in the place of the microbatch's own."""
    return current().denominators.get(name, own)
