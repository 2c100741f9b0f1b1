"""The predicted step of one rank as a list of events, the input of ``costmodel.step_simulator``."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.float8 import op_launches
from autosbp.costmodel.launch_overhead import with_launch_overhead
from autosbp.costmodel.network import level_of
from autosbp.costmodel.offload import optimizer_s
from autosbp.costmodel.op_times import all_op_times_s
from autosbp.costmodel.split_ops import internal_collectives
from autosbp.costmodel.step_collectives import RECOMPUTE, Collective, StepCollectives
from autosbp.costmodel.step_event import (
    EXPERT_PARALLEL,
    GRADIENT_SYNC,
    LOSS_SUM,
    PARAMETER_GATHER,
    TENSOR_PARALLEL,
    Event,
)
from autosbp.costmodel.synchronizer_cost import SynchronizerCost, is_stale, sync_key
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Signature, Strategy
from autosbp.program.chosen_options import checked_choices
from autosbp.program.gradient_buckets import AT_END, Bucket
from autosbp.program.parameter_flow import ParameterFlow, parameter_flow
from autosbp.program.parameter_gathers import NEVER, Gather
from autosbp.program.program import Boxing, Item, Op
from autosbp.sbp.boxing import COLLECTIVES, BoxingStep, message_bytes, split_factor
from autosbp.sbp.layout import format_nd_sbp

MAX_REDUCE_SCATTERS_IN_FLIGHT = 2
"""Maximum number of reduce-scatters of gathered parameters' gradients in flight (``executor.parameter_gathers``)."""


EXPERTS = "autosbp.experts.default"

LOSS = "loss"
"""Key of the loss's sum, which overlaps backward."""


class Timeline:
    """Events of one training step.

    Args:
        graph: bound at the microbatch size.
        boxing: on the strategy's mesh.
        flow: the strategy's parameter flow; must be given for a chunk of a pipeline.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        strategy: Strategy,
        boxing: BoxingModel,
        compute: ComputeModel,
        flow: ParameterFlow | None = None,
    ) -> None:
        self.graph, self.strategy, self.boxing, self.compute = graph, strategy, boxing, compute
        self.flow = flow or parameter_flow(graph, strategy)
        self.step = StepCollectives(graph, strategy, self.flow)
        self.synchronizers = SynchronizerCost(graph, strategy, boxing, compute)
        experts = [node for node in graph.nodes if node.op == EXPERTS]
        self._near_experts = frozenset(name for node in experts for name in (node.name, *(r.name for r in node.refs())))
        self._due: dict[int, list[int]] = {}
        self._due_backward: dict[int, list[int]] = {}
        self._due_recomputed: dict[int, list[int]] = {}
        for at, gather in enumerate(self.flow.gathers):
            self._due.setdefault(gather.first, []).append(at)
            if gather.again != NEVER and not gather.kept:
                due = self._due_recomputed if gather.recomputed else self._due_backward
                due.setdefault(gather.again, []).append(at)
        self._op_times = all_op_times_s(graph, strategy, self.flow.items, compute)
        self._shown: dict[Signature, str] = {}
        self._returning: list[Hashable] = []
        place = self.flow.place
        self._is_gathered = [isinstance(item, Boxing) and item.key in place for item in self.flow.items]
        launches = [
            op_launches(graph, item.node) if isinstance(item, Op) and item.signature else (0.0, 0.0)
            for item in self.flow.items
        ]
        forward = [count for count, _ in launches]
        self._num_forward, self._num_backward = sum(forward), sum(count for _, count in launches)
        self._num_recomputed = sum(sum(forward[each.first : each.last + 1]) for each in self.flow.ends.values())
        self._own_events: dict[tuple[int, str], list[Event]] = {}
        self._sent_events: dict[tuple[int, str], list[Event]] = {}
        self._returned_events: dict[tuple[int, int], list[Event]] = {}
        self._seconds: dict[tuple[str, int, tuple[int, ...], bool], float] = {}

    def events(self) -> Iterator[Event]:
        """Yield all events in execution order: microbatches, gradients in the last one, then the optimizer."""
        for events, times in self.phases():
            for _ in range(times):
                yield from events

    def phases(self) -> list[tuple[list[Event], int]]:
        """Microbatches with their repetitions: the first, those between, and the last with the optimizer."""
        count, each_use = self.strategy.num_micro, self.strategy.gather == "use"
        stale = list(self._stale_messages())
        if count == 1:
            return [([*stale, *self._micro(True, True), *self._update()], 1)]
        first = list(self._micro(True, False))
        last = [*self._micro(each_use, True), *self._update()]
        if count == 2:
            return [([*stale, *first], 1), (last, 1)]
        between = first if each_use else list(self._micro(False, False))
        return [([*stale, *first], 1), (between, count - 2), (last, 1)]

    def _micro(self, gathers: bool, last: bool) -> Iterator[Event]:
        """Yield one microbatch; ``gathers`` is False if parameters are still there from an earlier one."""
        yield from self.forward_pass(gathers)
        yield from self.backward_pass(last)

    def op_seconds(self, phases: Sequence[str] = ("forward", "backward")) -> dict[str, float]:
        """Seconds of each op in one microbatch, forward and backward, with the boxing of its inputs."""
        found: dict[str, float] = {}
        waiting = 0.0
        for at, item in enumerate(self.flow.items):
            waiting += sum(event.duration_s for phase in phases for event in self._item_events(at, item, phase, True))
            if isinstance(item, Op):
                found[item.node.name] = found.get(item.node.name, 0.0) + waiting
                waiting = 0.0
        return found

    def forward_pass(self, gathers: bool) -> Iterator[Event]:
        """One microbatch forward, see ``_micro``."""
        events, launches = self._forward_events(gathers), self.compute.launches
        return (
            events
            if launches is None
            else with_launch_overhead(events, self._num_forward * launches.forward_s, "forward")
        )

    def backward_pass(self, last: bool) -> Iterator[Event]:
        """One microbatch backward."""
        events, launches = self._backward_events(last), self.compute.launches
        if launches is None:
            return events
        host_s = self._num_backward * launches.backward_s + self._num_recomputed * launches.forward_s
        return with_launch_overhead(events, host_s, "backward")

    def _forward_events(self, gathers: bool) -> Iterator[Event]:
        self._returning.clear()
        for at, item in enumerate(self.flow.items):
            yield from self._forward(at, item, gathers)

    def _backward_events(self, last: bool) -> Iterator[Event]:
        returns = last or self.strategy.gather == "use"
        for at in range(len(self.flow.items) - 1, -1, -1):
            yield from self._recomputed(at)
            yield from self._backward(at, self.flow.items[at], returns, last)
        yield from self._gradient_collectives(AT_END, False, last)

    def gradient_events_after_passes(self) -> Iterator[Event]:
        """Yield the last microbatch's gradient events that wait until all passes are over (zero bubble)."""
        for at in range(len(self.flow.items) - 1, -1, -1) if self.strategy.gather == "step" else ():
            item = self.flow.items[at]
            if isinstance(item, Boxing) and item.key in self.flow.place:
                yield from self._item_events(at, item, "backward", True)
            yield from self._gradient_collectives(at, True, False)
        for bucket in self.flow.buckets:
            yield from self._reduced(bucket)

    def served_updates(self, beside: Iterable[Event] = ()) -> Iterator[Event]:
        """Yield the work of parameter servers after all reductions, ``beside`` other events, and wait for their values."""
        served = [bucket for bucket in self.flow.buckets if bucket.message is not None and bucket.message.is_served]
        for bucket in served:
            if not is_stale(bucket):
                yield from self.synchronizers.update(bucket)
        yield from beside
        if served:
            keys = tuple(sync_key(bucket, "update") for bucket in served)
            yield Event("values", "wait", "update", 0.0, after=keys)
        for bucket in served:
            yield from self.synchronizers.install(bucket)

    def _stale_messages(self) -> Iterator[Event]:
        """Yield messages that may lag: those of the step before, beside all of this one."""
        for bucket in self.flow.buckets:
            if is_stale(bucket):
                yield from self.synchronizers.reduction(bucket)
                yield from self.synchronizers.update(bucket)

    def _forward(self, at: int, item: Item, gathers: bool) -> Iterator[Event]:
        if gathers:
            yield from self._issued_gathers(self.flow.forward_gathers.get(at, ()), "forward")
            yield from self._gather_wait(self._due.get(at, ()), "forward")
        yield from self._item_events(at, item, "forward", gathers)

    def _backward(self, at: int, item: Item, returns: bool, last: bool) -> Iterator[Event]:
        yield from self._issued_gathers(self.flow.backward_gathers.get(at, ()), "backward")
        yield from self._gather_wait(self._due_backward.get(at, ()), "backward")
        yield from self._item_events(at, item, "backward", returns)
        yield from self._gradient_collectives(at, returns, last)

    def _recomputed(self, at: int) -> Iterator[Event]:
        """Yield the recomputation of a segment before the backward of item ``at``."""
        segment = self.flow.ends.get(at)
        for item in range(segment.first, segment.last + 1) if segment else ():
            yield from self._issued_gathers(self.flow.recompute_gathers.get(item, ()), RECOMPUTE)
            yield from self._gather_wait(self._due_recomputed.get(item, ()), RECOMPUTE)
            for event in self._item_events(item, self.flow.items[item], "forward", False):
                yield replace(event, phase=RECOMPUTE)

    def _item_events(self, at: int, item: Item, phase: str, parameters: bool) -> list[Event]:
        """Events of an item itself, the same in every microbatch; boxings of gathered parameters only with ``parameters``."""
        if self._is_gathered[at] and not parameters:
            return []
        found = self._own_events.get((at, phase))
        if found is None:
            made = self._box(at, item, phase) if isinstance(item, Boxing) else self._computed(at, item, phase)
            found = self._own_events[at, phase] = list(made)
        return found

    def _box(self, at: int, box: Boxing, phase: str) -> Iterator[Event]:
        own = not self._is_gathered[at] and (phase == "forward" or at in self.flow.backward_items)
        for step in box.steps if phase == "forward" else box.steps[::-1]:
            yield from self._step(box, step, phase, own)

    def _computed(self, at: int, item: Op, phase: str) -> list[Event]:
        if item.signature is None:
            return []
        forward = phase == "forward"
        event = self._op(item, phase, self._op_times[at][0 if forward else 1])
        inside = list(self._internal(item, item.signature, phase))
        return [event, *inside] if forward else [*reversed(inside), event]

    def _issued_gathers(self, places: Sequence[int], phase: str) -> Iterator[Event]:
        """Yield the parameter gathers issued here: flat messages are asynchronous, other paths block."""
        for place in places:
            if (place, phase) not in self._sent_events:
                self._sent_events[place, phase] = list(self._sending(place, phase))
            yield from self._sent_events[place, phase]

    def _sending(self, place: int, phase: str) -> Iterator[Event]:
        gather = self.flow.gathers[place]
        for call in self.step.gathered((place,), phase):
            event = replace(self._call(call, beside=gather.flat), purpose=PARAMETER_GATHER)
            yield replace(event, key=(phase == "forward", place)) if gather.flat else event

    def _gather_wait(self, places: Sequence[int], phase: str) -> Iterator[Event]:
        """Wait for the gathers of parameters that are read next."""
        keys = tuple((phase == "forward", place) for place in places if self.flow.gathers[place].flat)
        if keys:
            yield Event("parameters", "wait", phase, 0.0, after=keys)

    def _gradient_collectives(self, at: int, returns: bool, last: bool) -> Iterator[Event]:
        """Yield collectives of gradients that are complete here.

        Gradients of gathered parameters are reduce-scattered, at most ``MAX_REDUCE_SCATTERS_IN_FLIGHT`` at a time; those of B
        parameters are all-reduced.
        """
        for number, gather in enumerate(self.step.ready.get(at, ()) if returns else ()):
            yield from self._returned(gather, (at, number))
        for bucket in self.step.complete.get(at, ()) if last else ():
            yield from self._reduced(bucket)

    def _reduced(self, bucket: Bucket) -> Iterator[Event]:
        if bucket.is_direct:
            call = self._call(self.step.reduced(bucket), beside=True)
            yield replace(call, key=sync_key(bucket, "sync"), purpose=GRADIENT_SYNC)
        elif not is_stale(bucket):
            yield from self.synchronizers.reduction(bucket)

    def _returned(self, gather: Gather, place: tuple[int, int]) -> Iterator[Event]:
        key = ("returned", *place)
        if place not in self._returned_events:
            calls = [self._call(call, beside=gather.flat) for call in self.step.returned(gather)]
            self._returned_events[place] = [
                replace(event, key=key if gather.flat else None, purpose=GRADIENT_SYNC) for event in calls
            ]
        if gather.flat:
            if len(self._returning) == MAX_REDUCE_SCATTERS_IN_FLIGHT:
                yield Event("gradients", "wait", "backward", 0.0, after=(self._returning.pop(0),))
            self._returning.append(key)
        yield from self._returned_events[place]

    def _op(self, item: Op, phase: str, seconds: float) -> Event:
        assert item.signature is not None
        shown = self._shown.get(item.signature)
        if shown is None:
            shown = self._shown[item.signature] = str(item.signature)
        return Event(item.node.name, "compute", phase, seconds, {"op": item.node.op, "layouts": shown})

    def _internal(self, item: Op, signature: Signature, phase: str) -> Iterator[Event]:
        """Yield the collectives of a split implementation."""
        choices = checked_choices(self.graph, item.node, signature, self.strategy.mesh.ndim)
        for call in internal_collectives(self.graph, item.node, choices, self.strategy.mesh):
            if call.phase == phase:
                event = self._collective(item.node.name, phase, call.kind, call.num_bytes, call.axes)
                yield replace(event, purpose=self._purpose(item.node.name))

    def _step(self, box: Boxing, step: BoxingStep, phase: str, own: bool) -> Iterator[Event]:
        """Yield a boxing step's local copies, and its collective if ``own`` (not part of a parameter gather)."""
        if box.data:
            return
        forward, meta = phase == "forward", self.graph.meta(box.ref)
        whole = meta.num_bytes if forward else meta.gradient_bytes
        message = message_bytes(step, whole, self.strategy.mesh)
        local_s = self.boxing.step_cost(step, whole, False).local_s
        if not forward:
            local_s = self.boxing.step_cost(step, whole, box.differentiable).local_s - local_s
        kind = step.forward if forward else step.backward
        layouts = f"{format_nd_sbp(step.src)} -> {format_nd_sbp(step.dst)}"
        if own and kind in COLLECTIVES:
            event = self._collective(box.ref.name, phase, kind, message, step.axes, layouts)
            if box.overlaps_backward(step):
                yield replace(event, key=LOSS, purpose=LOSS_SUM)
            elif box.ref.name in self.graph.parameter_names:
                yield replace(event, purpose=PARAMETER_GATHER if forward else GRADIENT_SYNC)
            else:
                yield replace(event, purpose=self._purpose(box.ref.name))
        if local_s > 0.0:
            details = {"num_bytes": message, "layouts": layouts}
            yield Event(f"copies of {kind} {box.ref.name}", "compute", phase, local_s, details)

    def _purpose(self, name: str) -> str:
        """Purpose of communication inside an op, or of its result."""
        return EXPERT_PARALLEL if name in self._near_experts else TENSOR_PARALLEL

    def _collective(
        self, cause: str, phase: str, kind: str, num_bytes: int, axes: tuple[int, ...], layouts: str = "",
        *, beside: bool = False,
    ) -> Event:  # fmt: skip
        """Event of a collective; ``beside``: it is asynchronous."""
        mesh = self.strategy.mesh
        shape = mesh.group_shape(axes)
        details = {
            "kind": kind,
            "num_bytes": num_bytes,
            "axes": list(axes),
            "axis_names": [mesh.axes[axis].name for axis in axes],
            "cause": cause,
            "layouts": layouts,
        }
        level = level_of(shape)
        call = (kind, num_bytes, shape, beside)
        if call not in self._seconds:
            size = np.array([num_bytes], dtype=np.float64)
            self._seconds[call] = float(self.boxing.network.times_s(kind, size, shape, not beside)[0])
        seconds = self._seconds[call]
        return Event(f"{kind} {cause}", "comm", phase, seconds, details, level)

    def _call(self, call: Collective, *, beside: bool = False) -> Event:
        return self._collective(call.cause, call.phase, call.kind, call.num_bytes, call.axes, beside=beside)

    def _update(self) -> Iterator[Event]:
        """Yield the optimizer, after the loss and all gradients."""
        keys = tuple(sync_key(bucket, "sync") for bucket in self.flow.buckets if not is_stale(bucket))
        yield Event("gradients", "wait", "sync", 0.0, after=(LOSS, *keys, *self._returning))
        yield from self.served_updates(self._own_updates())

    def _own_updates(self) -> Iterator[Event]:
        """Yield the optimizer's steps of the parameters without a server."""
        for leaf in self.graph.trained:
            if leaf.name in self.flow.served_parameters:
                continue
            local = leaf.meta.num_bytes / split_factor(self.strategy.parameters[leaf.name], self.strategy.mesh)
            seconds = float(
                optimizer_s(
                    self.compute,
                    self.boxing.network.cluster,
                    self.strategy.optimizer,
                    np.array([local]),
                    leaf.meta,
                    offload=self.strategy.offload,
                )[0]
            )
            yield Event(leaf.name, "optimizer", "update", seconds, {"num_bytes": round(local)})
