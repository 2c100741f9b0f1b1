"""Seconds of one microbatch through each part of a model: forward, backward, recomputation, and the collectives within.

Compute is the sum of the kernels (``costmodel.kernels``). Collectives of forward wait. In backward, a collective that joins
the gradient of a product's input runs beside the gradient of its weights (Korthikanti et al. 2022, section 6.2), and what was
gathered for forward is gathered again, rather than kept, beside the gradient of the input (there, section 4.2.2). What is
recomputed runs forward again, its collectives too. Activations lie with the dim first that collectives work on, as in
Megatron-LM (sequence, batch, hidden): no copies around them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from autosbp.cluster import Curves
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.efficiency import exposed_s
from autosbp.costmodel.fusion import fused_ops
from autosbp.costmodel.kernels import FORWARD, INPUT, WEIGHT, Kernel, program_kernels
from autosbp.costmodel.local_work import LocalWork, signature
from autosbp.costmodel.split_ops import internal_collectives
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Strategy
from autosbp.sbp.choices import axis_choices
from autosbp.sbp.program import Box, Op, program_items


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Seconds of one microbatch; ``comm`` is what collectives add to compute."""

    forward_s: float = 0.0
    forward_comm_s: float = 0.0
    backward_s: float = 0.0
    backward_comm_s: float = 0.0
    recompute_s: float = 0.0
    recompute_comm_s: float = 0.0

    def __add__(self, other: PassTimes) -> PassTimes:
        return PassTimes(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(PassTimes)))

    @property
    def forward_total_s(self) -> float:
        """All of forward."""
        return self.forward_s + self.forward_comm_s

    @property
    def backward_total_s(self) -> float:
        """All of backward, with what is recomputed for it."""
        return self.backward_s + self.backward_comm_s + self.recompute_s + self.recompute_comm_s


class PassModel:
    """Times of the parts of one program. ``graph`` is bound at the microbatch; the device has ``curves``."""

    def __init__(self, graph: LogicalGraph, strategy: Strategy, boxing: BoxingModel, curves: Curves) -> None:
        self.graph, self.strategy, self.boxing, self.curves = graph, strategy, boxing, curves
        self.items = tuple(program_items(graph, strategy))
        self.groups = fused_ops(graph, self.items)
        self.kernels = program_kernels(LocalWork(graph, strategy, self.items), self.groups)
        self._readers: dict[object, list[str]] = {}
        for group in self.groups:
            for read in {read for item in group for read in item.reads}:
                self._readers.setdefault(read, []).append(group[0].node.name)

    def times(self, names: Sequence[str], recomputed: frozenset[str] = frozenset()) -> PassTimes:
        """Of the part that these ops make, with those of ``recomputed`` done twice."""
        inside, total = frozenset(names), PassTimes()
        for group in self.groups:
            name = group[0].node.name
            if name in inside:
                again = all(item.node.name in recomputed for item in group)
                total += self._group(self.kernels[name], again)
        for box, reader in self._boxes().items():
            if reader in inside:
                total += self._box(box, reader in recomputed)
        for item in self.items:
            if isinstance(item, Op) and item.signature and item.node.name in inside:
                total += self._internal(item, item.node.name in recomputed)
        return total

    def _seconds(self, kernels: Sequence[Kernel]) -> float:
        return sum(kernel.seconds(self.boxing.device, self.curves) for kernel in kernels)

    def _group(self, kernels: Sequence[Kernel], again: bool) -> PassTimes:
        forward = self._seconds([kernel for kernel in kernels if kernel.part == FORWARD])
        backward = self._seconds([kernel for kernel in kernels if kernel.part != FORWARD])
        return PassTimes(forward_s=forward, backward_s=backward, recompute_s=forward if again else 0.0)

    def _boxes(self) -> Mapping[Box, str]:
        """Every boxing of an activation, with the first op that reads it; the loss's belongs to the op that makes it."""
        return {
            item: (self._readers.get(item.key) or [item.ref.name])[0]
            for item in self.items
            if isinstance(item, Box) and not item.data and item.ref.name not in self.graph.parameter_names
        }

    def _box(self, box: Box, again: bool) -> PassTimes:
        cost = [
            self.boxing.step_cost(step, self.graph.meta(box.ref).num_bytes, box.differentiable) for step in box.steps
        ]
        forward = sum(step.forward_comm_s for step in cost)
        backward = exposed_s(self.curves, sum(step.backward_comm_s for step in cost), self._products_s(box, WEIGHT))
        beside = self._products_s(box, INPUT)
        if beside and any(step.forward == "all_gather" for step in box.steps):
            backward += exposed_s(self.curves, forward, beside)
        return PassTimes(forward_comm_s=forward, backward_comm_s=backward, recompute_comm_s=forward if again else 0.0)

    def _products_s(self, box: Box, part: str) -> float:
        """Gradients of weights, or of inputs, by products of the ops that read a box and parameters."""
        found = [kernels for name in self._readers.get(box.key, ()) if _has_weight(kernels := self.kernels[name])]
        return self._seconds(
            [kernel for kernels in found for kernel in kernels if kernel.part == part and kernel.flops]
        )

    def _internal(self, item: Op, again: bool) -> PassTimes:
        """Collectives inside a split implementation."""
        mesh = self.strategy.mesh
        choices = axis_choices(self.graph, item.node, signature(item), mesh.ndim)
        spent = {"forward": 0.0, "backward": 0.0}
        for call in internal_collectives(self.graph, item.node, choices, mesh):
            spent[call.phase] += self.boxing.network.time_s(call.kind, call.num_bytes, mesh.group_shape(call.axes))
        return PassTimes(
            forward_comm_s=spent["forward"],
            backward_comm_s=spent["backward"],
            recompute_comm_s=spent["forward"] if again else 0.0,
        )


def _has_weight(kernels: Sequence[Kernel]) -> bool:
    return any(kernel.part == WEIGHT and kernel.result for kernel in kernels)
