"""The predicted step of one rank as a list of events: what ``costmodel.evaluate`` sums, one by one and in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from autosbp.costmodel.boxing import RELABEL_S, BoxingModel
from autosbp.costmodel.calibration import Calibration, OpTime
from autosbp.costmodel.collectives import Collective, StepCollectives
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.evaluate import op_time_s, shared_message_bytes, synchronisation_s
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.split_ops import internal_collectives
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Plan, Signature
from autosbp.sbp.boxing import COLLECTIVES, Step, message_bytes, split_factor
from autosbp.sbp.choices import axis_choices
from autosbp.sbp.parameters import AT_END, parameter_flow
from autosbp.sbp.placement import format_nd_sbp
from autosbp.sbp.program import Box, Item, Op


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that the rank does. ``category`` is compute, comm or optimizer; ``phase`` is forward, backward, sync or
    update; a collective has the ``kind``, ``num_bytes`` and ``axes`` of ``costmodel.evaluate.Collective``."""

    name: str
    category: str
    phase: str
    duration_s: float
    details: Mapping[str, Any] = field(default_factory=dict)


class Timeline:
    """Events of one training step of ``plan``; its costs must have come from ``calibration``."""

    def __init__(self, plan: Plan, graph: LogicalGraph, calibration: Calibration | None) -> None:
        self.strategy, device = plan.strategy, plan.cluster.device
        self.graph = graph.bind(**dict.fromkeys(graph.symbols, self.strategy.micro_batch))
        self.flow = parameter_flow(self.graph, self.strategy)
        self.step = StepCollectives(self.graph, self.strategy, self.flow)
        self.message = shared_message_bytes(self.graph, self.strategy.bucket_bytes)
        self.network = NetworkModel(plan.cluster, calibration)
        self.compute = ComputeModel(device, calibration)
        self.boxing = BoxingModel(self.network, self.strategy.mesh, self.compute.copy_bytes_per_s)
        self.forward_compute = _ForwardOnly(device, calibration)

    def events(self) -> Iterator[Event]:
        """Microbatches one after another, gradients in the last, then the optimizer: the order in which ranks run them."""
        count = self.strategy.num_micro
        each_use = self.strategy.gather == "use"
        for micro in range(count):
            for at, item in enumerate(self.flow.items):
                yield from self._forward(at, item, each_use or micro == 0)
            last = micro == count - 1
            for at in range(len(self.flow.items) - 1, -1, -1):
                yield from self._backward(at, self.flow.items[at], each_use or last, last)
        yield from map(self._call, self.step.after_backward(AT_END, False, True))
        yield from self._update()

    def _forward(self, at: int, item: Item, gathers: bool) -> Iterator[Event]:
        if gathers:
            yield from map(self._call, self.step.before_forward(at))
        if isinstance(item, Box):
            gathered = item.key in self.flow.place
            for step in item.steps if gathers or not gathered else ():
                yield from self._step(item, step, "forward", gathered)
        elif item.signature is not None:
            seconds = op_time_s(self.graph, self.strategy, item, self.forward_compute)
            yield self._op(item, "forward", seconds)
            yield from self._internal(item, item.signature, "forward")

    def _backward(self, at: int, item: Item, gradients: bool, last: bool) -> Iterator[Event]:
        yield from map(self._call, self.step.before_backward(at))
        if isinstance(item, Box):
            gathered = item.key in self.flow.place
            for step in reversed(item.steps) if gradients or not gathered else ():
                yield from self._step(item, step, "backward", gathered)
        elif item.signature is not None:
            yield from reversed(list(self._internal(item, item.signature, "backward")))
            both = op_time_s(self.graph, self.strategy, item, self.compute)
            yield self._op(item, "backward", both - op_time_s(self.graph, self.strategy, item, self.forward_compute))
        yield from map(self._call, self.step.after_backward(at, gradients, last))

    def _op(self, item: Op, phase: str, seconds: float) -> Event:
        return Event(item.node.name, "compute", phase, seconds, {"op": item.node.op, "layouts": str(item.signature)})

    def _internal(self, item: Op, signature: Signature, phase: str) -> Iterator[Event]:
        """Collectives of a split implementation."""
        choices = axis_choices(self.graph, item.node, signature, self.strategy.mesh.ndim)
        for call in internal_collectives(self.graph, item.node, choices, self.strategy.mesh):
            if call.phase == phase:
                yield self._collective(item.node.name, phase, call.kind, call.num_bytes, call.axes)

    def _step(self, box: Box, step: Step, phase: str, gathered: bool) -> Iterator[Event]:
        """A boxing step: its collective, unless that is one of the parameters' own, and its local copies."""
        whole = self.graph.meta(box.ref).num_bytes
        message = message_bytes(step, whole, self.strategy.mesh)
        ahead_s = self.boxing.step_cost(step, whole, False).local_s
        local_s = ahead_s if phase == "forward" else self.boxing.step_cost(step, whole, True).local_s - ahead_s
        kind = step.forward if phase == "forward" else step.backward
        layouts = f"{format_nd_sbp(step.src)} -> {format_nd_sbp(step.dst)}"
        if kind in COLLECTIVES and not gathered:
            yield self._collective(box.ref.name, phase, kind, message, step.axes, layouts)
        if local_s > RELABEL_S:
            details = {"num_bytes": message, "layouts": layouts}
            yield Event(f"copies of {kind} {box.ref.name}", "compute", phase, local_s, details)

    def _collective(
        self, cause: str, phase: str, kind: str, num_bytes: int, axes: tuple[int, ...], layouts: str = ""
    ) -> Event:
        mesh = self.strategy.mesh
        seconds = self.network.time_s(kind, num_bytes, mesh.group_shape(axes))
        details = {
            "kind": kind,
            "num_bytes": num_bytes,
            "axes": list(axes),
            "axis_names": [mesh.axes[axis].name for axis in axes],
            "cause": cause,
        }
        return Event(f"{kind} {cause}", "comm", phase, seconds, {**details, "layouts": layouts})

    def _call(self, call: Collective) -> Event:
        """A collective of parameters; a reduction of gradients takes the shares of those in it."""
        event = self._collective(call.cause, call.phase, call.kind, call.num_bytes, call.axes)
        if call.phase != "sync":
            return event
        bucket = next(bucket for bucket in self.flow.buckets if bucket.names[0] == call.cause)
        seconds = synchronisation_s(self.graph, self.strategy, bucket, self.network, self.message)
        return replace(event, duration_s=seconds)

    def _update(self) -> Iterator[Event]:
        for leaf in self.graph.trained:
            local = leaf.meta.num_bytes / split_factor(self.strategy.parameters[leaf.name], self.strategy.mesh)
            seconds = float(self.compute.optimizer_s(np.array([local]))[0])
            yield Event(leaf.name, "optimizer", "update", seconds, {"num_bytes": round(local)})


class _ForwardOnly(ComputeModel):
    """The same model of a device, with backward passes free."""

    def __init__(self, device: Any, calibration: Calibration | None) -> None:
        super().__init__(device, calibration)
        self.measured = {key: OpTime(time.forward_s, 0.0) for key, time in self.measured.items()}

    def roofline_s(self, *args: Any) -> Any:
        """Forward seconds, and no backward ones."""
        forward, backward = super().roofline_s(*args)
        return forward, 0.0 * backward


def total_s(events: Iterable[Event]) -> float:
    """Seconds of all events, one after another."""
    return sum(event.duration_s for event in events)
