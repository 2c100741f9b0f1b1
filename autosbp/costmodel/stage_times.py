"""Seconds of one microbatch through parts of a model: forward, backward, recomputation, and their collectives.

Compute is the sum of the kernels (``costmodel.kernels``). Collectives of forward are exposed. In backward, a collective
that reduces the gradient of a matmul's input overlaps the gradient of its weights (Korthikanti et al. 2022, section
6.2); gathered activations are not kept but gathered again, overlapped with the gradient of the input (section 4.2.2).
Recomputation repeats forward with its collectives. Activations have the dim that collectives work on first, as in
Megatron-LM (sequence, batch, hidden), so collectives need no copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from autosbp.cluster.hardware import EfficiencyCurves
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.efficiency import exposed_s
from autosbp.costmodel.fusion import fused_ops
from autosbp.costmodel.kernels import FORWARD, INPUT, WEIGHT, Kernel, program_kernels
from autosbp.costmodel.local_op_work import LocalOpWork, signature
from autosbp.costmodel.split_ops import internal_collectives
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Strategy
from autosbp.program.chosen_options import checked_choices
from autosbp.program.program import Boxing, Op, program_items


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
        """Forward, with its exposed communication."""
        return self.forward_s + self.forward_comm_s

    @property
    def backward_total_s(self) -> float:
        """Backward, with its recomputation and exposed communication."""
        return self.backward_s + self.backward_comm_s + self.recompute_s + self.recompute_comm_s


class PassTimeModel:
    """Times of the parts of one program. ``graph`` is bound at the microbatch size; the device has ``curves``."""

    def __init__(self, graph: LogicalGraph, strategy: Strategy, boxing: BoxingModel, curves: EfficiencyCurves) -> None:
        self.graph, self.strategy, self.boxing, self.curves = graph, strategy, boxing, curves
        self.items = tuple(program_items(graph, strategy))
        self.groups = fused_ops(graph, self.items)
        self.kernels = program_kernels(LocalOpWork(graph, strategy, self.items), self.groups)
        self._readers: dict[object, list[str]] = {}
        for group in self.groups:
            for read in {read for item in group for read in item.reads}:
                self._readers.setdefault(read, []).append(group[0].node.name)

    def times(self, names: Sequence[str], recomputed: frozenset[str] = frozenset()) -> PassTimes:
        """Times of the part that consists of these ops; ops in ``recomputed`` run forward twice."""
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

    def _boxes(self) -> Mapping[Boxing, str]:
        """Every boxing of an activation, with the first op that reads it; the loss's belongs to the op that produces it."""
        return {
            item: (self._readers.get(item.key) or [item.ref.name])[0]
            for item in self.items
            if isinstance(item, Boxing) and not item.data and item.ref.name not in self.graph.parameter_names
        }

    def _box(self, box: Boxing, again: bool) -> PassTimes:
        cost = [
            self.boxing.step_cost(step, self.graph.meta(box.ref).num_bytes, box.differentiable) for step in box.steps
        ]
        forward = sum(step.forward_comm_s for step in cost)
        backward = exposed_s(self.curves, sum(step.backward_comm_s for step in cost), self._products_s(box, WEIGHT))
        beside = self._products_s(box, INPUT)
        if beside and any(step.forward == "all_gather" for step in box.steps):
            backward += exposed_s(self.curves, forward, beside)
        return PassTimes(forward_comm_s=forward, backward_comm_s=backward, recompute_comm_s=forward if again else 0.0)

    def _products_s(self, box: Boxing, part: str) -> float:
        """Seconds of the matmuls for weight or input gradients, in ops that read a boxed value and parameters."""
        found = [kernels for name in self._readers.get(box.key, ()) if _has_weight(kernels := self.kernels[name])]
        return self._seconds(
            [kernel for kernels in found for kernel in kernels if kernel.part == part and kernel.flops]
        )

    def _internal(self, item: Op, again: bool) -> PassTimes:
        """Collectives inside a split implementation."""
        mesh = self.strategy.mesh
        choices = checked_choices(self.graph, item.node, signature(item), mesh.ndim)
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
