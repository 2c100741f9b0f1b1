"""Every collective of a training step, in the order in which each rank issues them.

Backward is the exact reverse of forward: autograd runs nodes in descending order of creation.
``program.parameter_flow`` places the collectives of parameters between those of the program: parameter gathers are
prefetched by one, reduce-scatters and all-reduces of gradients are issued as soon as the gradients are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from autosbp.costmodel.split_ops import internal_collectives
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Strategy
from autosbp.program.chosen_options import checked_choices
from autosbp.program.gradient_buckets import AT_END, Bucket, local_gradient_bytes
from autosbp.program.gradient_messages import HALF_BYTES, PULL, PUSH
from autosbp.program.parameter_flow import ParameterFlow, parameter_flow
from autosbp.program.parameter_gathers import Gather, boxing_step_bytes
from autosbp.program.program import Boxing, Item
from autosbp.sbp.boxing import COLLECTIVES

RECOMPUTE = "recompute"
Ready = TypeVar("Ready", Gather, Bucket)


@dataclass(frozen=True, slots=True)
class Collective:
    """One charged collective: message n in bytes, mesh axes of its group, and its cause.

    ``phase`` is forward, recompute, backward, sync (gradients of B parameters) or update (their new values from
    parameter servers). ``cause`` is a value, an op, or the first parameter of a shared message. ``root`` and ``only``
    are those of ``program.gradient_messages.MessageCall``.
    """

    kind: str
    num_bytes: int
    axes: tuple[int, ...]
    phase: str
    cause: str
    root: int = -1
    only: tuple[tuple[int, int], ...] = ()

    @property
    def measured_kind(self) -> str:
        """The kind that a calibration measures: pushes and pulls are P2P messages."""
        return "p2p" if self.kind in (PUSH, PULL) else self.kind


def collectives(graph: LogicalGraph, strategy: Strategy) -> list[Collective]:
    """All collectives of one step; ``graph`` is bound at the microbatch size."""
    return StepCollectives(graph, strategy, parameter_flow(graph, strategy)).step()


class StepCollectives:
    """Collectives of one step by phase, with the program items at which those of parameters are issued."""

    def __init__(self, graph: LogicalGraph, strategy: Strategy, flow: ParameterFlow) -> None:
        self.graph, self.strategy, self.flow = graph, strategy, flow

    def step(self) -> list[Collective]:
        """All collectives, in order of issue."""
        return [call for calls, times in self.phases() for _ in range(times) for call in calls]

    def phases(self) -> Iterator[tuple[list[Collective], int]]:
        """Yield lists in order of issue, each with its number of repetitions."""
        count = self.strategy.num_micro
        once = self.strategy.gather == "step"
        yield self.forward(True), 1
        yield self.backward(not once, False) + self.forward(not once), count - 1
        yield self.backward(True, True) + self.at_end(), 1
        yield [*self.message_reductions(), *self.message_updates()], 1

    def forward(self, gathers: bool) -> list[Collective]:
        """Collectives of one microbatch's forward; ``gathers`` is False if parameters are still there from an earlier one."""
        calls: list[Collective] = []
        for at, item in enumerate(self.flow.items):
            calls += self.before_forward(at) if gathers else []
            calls += self._own(at, item, "forward")
        return calls

    def backward(self, gradients: bool, last: bool) -> list[Collective]:
        """Collectives of one microbatch's backward.

        Args:
            gradients: include the gradients of gathered parameters.
            last: last microbatch: include the all-reduces, except those of ``at_end``.
        """
        calls: list[Collective] = []
        for at in range(len(self.flow.items) - 1, -1, -1):
            calls += self.recomputed(at)
            calls += self.before_backward(at)
            calls += reversed(self._own(at, self.flow.items[at], "backward"))
            calls += self.after_backward(at, gradients, last)
        return calls

    def at_end(self) -> list[Collective]:
        """All-reduces that wait for the end of the last backward."""
        return self.after_backward(AT_END, False, True)

    def all_bucket_all_reduces(self) -> list[Collective]:
        """Every all-reduce of gradients, but those within other messages."""
        return [self.reduced(bucket) for bucket in self.flow.buckets if bucket.is_direct]

    def message_reductions(self) -> list[Collective]:
        """Collectives that reduce the messages of a synchronization strategy which are not one all-reduce."""
        return [call for bucket in self._messages for call in message_calls(bucket, update=False)]

    def message_updates(self) -> list[Collective]:
        """Collectives that bring new values from parameter servers."""
        return [call for bucket in self._messages for call in message_calls(bucket, update=True)]

    @property
    def _messages(self) -> list[Bucket]:
        return [bucket for bucket in self.flow.buckets if not bucket.is_direct]

    def all_gradient_reduce_scatters(self) -> list[Collective]:
        """Reduce-scatters of the gradients of all gathered parameters, in the order in which backward completes them."""
        places = sorted(self.ready, reverse=True)
        return [call for at in places for gather in self.ready[at] for call in self.returned(gather)]

    def before_forward(self, at: int) -> list[Collective]:
        """Parameter gathers issued before item ``at`` in forward."""
        return self.gathered(self.flow.forward_gathers.get(at, ()), "forward")

    def before_backward(self, at: int) -> list[Collective]:
        """Parameter gathers issued again before the backward of item ``at``."""
        return self.gathered(self.flow.backward_gathers.get(at, ()), "backward")

    def recomputed(self, at: int) -> list[Collective]:
        """Collectives of a segment's recomputation, issued before the backward of its last item ``at``."""
        calls: list[Collective] = []
        segment = self.flow.ends.get(at)
        for item in range(segment.first, segment.last + 1) if segment else ():
            calls += self.gathered(self.flow.recompute_gathers.get(item, ()), RECOMPUTE)
            calls += (replace(call, phase=RECOMPUTE) for call in self._own(item, self.flow.items[item], "forward"))
        return calls

    def after_backward(self, at: int, gradients: bool, last: bool) -> list[Collective]:
        """Gradient collectives issued after the backward of item ``at``, or at the end (``AT_END``)."""
        calls = [call for gather in self.ready.get(at, ()) for call in self.returned(gather)] if gradients else []
        buckets = self.complete.get(at, ()) if last else ()
        return calls + [self.reduced(bucket) for bucket in buckets if bucket.is_direct]

    @cached_property
    def ready(self) -> Mapping[int, list[Gather]]:
        """Gathers by the item whose backward completes their gradients."""
        return _places(self.flow.gathers)

    @cached_property
    def complete(self) -> Mapping[int, list[Bucket]]:
        """Gradient buckets by the item whose backward completes them."""
        return _places(self.flow.buckets)

    def gathered(self, places: Iterable[int], phase: str) -> list[Collective]:
        """All-gathers (or boxings) of the parameters of these gathers."""
        calls: list[Collective] = []
        for gather in (self.flow.gathers[place] for place in places):
            if gather.flat:
                cause = gather.boxes[0].ref.name
                calls.append(Collective("all_gather", self._flat_bytes(gather), gather.step.axes, phase, cause))
            else:
                calls += self._boxed(gather.boxes[0], lambda step: step.forward, phase)
        return calls

    def returned(self, gather: Gather) -> list[Collective]:
        """Collectives that reduce the gradients of a gather back to their stored layout."""
        cause = gather.boxes[0].ref.name
        if gather.flat:
            return [
                Collective(
                    "reduce_scatter", self._flat_bytes(gather, backward=True), gather.step.axes, "backward", cause
                )
            ]
        return self._boxed(gather.boxes[0], lambda step: step.backward, "backward")[::-1]

    def _flat_bytes(self, gather: Gather, *, backward: bool = False) -> int:
        sizes = (boxing_step_bytes(self.graph, self.strategy, box, backward=backward) for box in gather.boxes)
        total = sum(steps[0] for steps in sizes)
        if not backward or gather.compressor is None:
            return total
        return total // self.graph.meta(gather.boxes[0].ref).gradient_width * HALF_BYTES

    def reduced(self, bucket: Bucket) -> Collective:
        """The all-reduce of a gradient bucket that takes one."""
        if bucket.message is None:
            total = sum(local_gradient_bytes(self.graph, self.strategy, name) for name in bucket.names)
        else:
            total = bucket.message.num_elements * bucket.message.width
        return Collective("all_reduce", total, bucket.axes, "sync", bucket.names[0])

    def _own(self, at: int, item: Item, phase: str) -> list[Collective]:
        """Collectives of one item of the program in a phase, in forward order."""
        if isinstance(item, Boxing):
            if item.key in self.flow.place or (phase == "backward" and at not in self.flow.backward_items):
                return []
            return self._boxed(item, lambda step: step.forward if phase == "forward" else step.backward, phase)
        return [call for call in self._internal[at] if call.phase == phase]

    @cached_property
    def _internal(self) -> Mapping[int, list[Collective]]:
        found: dict[int, list[Collective]] = {}
        mesh = self.strategy.mesh
        for at, item in enumerate(self.flow.items):
            if isinstance(item, Boxing) or item.signature is None:
                found[at] = []
                continue
            choices = checked_choices(self.graph, item.node, item.signature, mesh.ndim)
            found[at] = [
                Collective(call.kind, call.num_bytes, call.axes, call.phase, item.node.name)
                for call in internal_collectives(self.graph, item.node, choices, mesh)
            ]
        return found

    def _boxed(self, box: Boxing, action: Callable[..., str], phase: str) -> list[Collective]:
        """The collectives among the steps of a boxing, in forward order."""
        sizes = boxing_step_bytes(self.graph, self.strategy, box, backward=phase == "backward")
        return [
            Collective(action(step), size, step.axes, phase, box.ref.name)
            for step, size in zip(box.steps, sizes, strict=True)
            if action(step) in COLLECTIVES
        ]


def message_calls(bucket: Bucket, *, update: bool) -> list[Collective]:
    """Collectives of a bucket that is not one all-reduce: its reduction, or the ``update`` of its parameters."""
    assert bucket.message is not None
    calls = bucket.message.update() if update else bucket.message.reduction()
    phase, cause = "update" if update else "sync", bucket.names[0]
    return [Collective(call.kind, call.num_bytes, call.axes, phase, cause, call.root, call.only) for call in calls]


def _places(things: Iterable[Ready]) -> Mapping[int, list[Ready]]:
    """Group by the item after whose backward they are issued."""
    found: dict[int, list[Ready]] = {}
    for thing in things:
        found.setdefault(thing.ready, []).append(thing)
    return found
