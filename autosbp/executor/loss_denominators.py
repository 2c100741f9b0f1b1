"""Batch-wide denominators of losses, such as the number of labels; ``program.microbatch_loss`` decides which.

Every rank has the whole batch and computes them itself, before the first pass of a step, without communication.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from autosbp.executor.runtime import current
from autosbp.graph.ir import Input, LogicalGraph, Ref
from autosbp.graph.to_fx import to_graph_module, torch_dtype
from autosbp.program.microbatch_loss import Denominator, producing_nodes


class BatchDenominators:
    """The denominators of a graph.

    Args:
        graph: bound at the microbatch; a pipeline chunk has the denominators of its own divisions.
        denominators: ``denominators`` of ``program.microbatch_loss.LossScaling``, by name of division.
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
            (name, torch_dtype(here[name]), _DenominatorProgram(graph, denominators[name], device))
            for name in sorted(self.names)
        ]

    def of(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """By division: ``times`` the whole batch's denominator over the number of microbatches, in its dtype."""
        parts = [
            {name: each[at * self._size : (at + 1) * self._size] for name, each in batch.items()}
            for at in range(self._count)
        ]
        with torch.no_grad():
            return {name: (program.of(parts) / self._count).to(dtype) for name, dtype, program in self._programs}


class _DenominatorProgram:
    """Computes one denominator: sums over the microbatches, and the value computed from these."""

    def __init__(self, graph: LogicalGraph, denominator: Denominator, device: torch.device) -> None:
        self._times, self._is_sum = denominator.times, denominator.ref in denominator.sums
        sums = sorted(denominator.sums, key=lambda ref: ref.name)
        parts = [_value_graph(graph, ref) for ref in sums]
        self._sums = [([leaf.name for leaf in part.inputs], to_graph_module(part).to(device)) for part in parts]
        self._made = to_graph_module(_value_graph(graph, denominator.ref, sums)).to(device)

    def of(self, parts: Sequence[Mapping[str, torch.Tensor]]) -> torch.Tensor:
        """``times`` the denominator of the whole batch, which is given as its microbatches."""
        sums = []
        for inputs, program in self._sums:
            found = [program(*(part[name] for name in inputs)) for part in parts]
            whole = torch.stack([each.double() for each in found]).sum(0) / self._times
            sums.append(whole if self._is_sum else whole.to(found[0].dtype))
        made: torch.Tensor = self._made(*sums)
        return self._times * made.double()


def _value_graph(graph: LogicalGraph, ref: Ref, given: Sequence[Ref] = ()) -> LogicalGraph:
    """The graph that computes one value from the batch, or from the values in ``given``, its first inputs."""
    nodes = producing_nodes(graph, (ref,), given)
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


def batch_denominator(own: torch.Tensor, name: str) -> torch.Tensor:
    """In a program: the batch-wide divisor of division ``name``, or the microbatch's own if there is none."""
    return current().denominators.get(name, own)
