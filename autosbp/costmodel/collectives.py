"""Every collective of a training step, in the order in which each rank issues them.

Backward is the exact reverse of forward: autograd runs nodes in descending order of creation. Between the collectives of
the program stand those of its parameters, at the places that ``sbp.parameters`` gives: gathers with the next one under
way, reduce-scatters and all-reduces of gradients as soon as these are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from autosbp.costmodel.split_ops import internal_collectives
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Strategy
from autosbp.sbp.boxing import COLLECTIVES
from autosbp.sbp.buckets import AT_END, Bucket, local_bytes
from autosbp.sbp.choices import axis_choices
from autosbp.sbp.gathers import Gather, box_bytes
from autosbp.sbp.parameters import ParameterFlow, parameter_flow
from autosbp.sbp.program import Box, Item

RECOMPUTE = "recompute"
Ready = TypeVar("Ready", Gather, Bucket)


@dataclass(frozen=True, slots=True)
class Collective:
    """One charged collective: message n in bytes, mesh axes of its group, and why it happens.

    ``phase`` is forward, recompute, backward or sync: the gradients of B parameters. ``cause`` is a value or an op, or the
    first parameter of those that travel together.
    """

    kind: str
    num_bytes: int
    axes: tuple[int, ...]
    phase: str
    cause: str


def collectives(graph: LogicalGraph, strategy: Strategy) -> list[Collective]:
    """The whole list of one step; ``graph`` is bound at the microbatch."""
    return StepCollectives(graph, strategy, parameter_flow(graph, strategy)).step()


class StepCollectives:
    """The collectives of one step by phase, and at which items of the program those of parameters are issued."""

    def __init__(self, graph: LogicalGraph, strategy: Strategy, flow: ParameterFlow) -> None:
        self.graph, self.strategy, self.flow = graph, strategy, flow

    def step(self) -> list[Collective]:
        """All of them, in order of issue."""
        return [call for calls, times in self.phases() for _ in range(times) for call in calls]

    def phases(self) -> Iterator[tuple[list[Collective], int]]:
        """Lists in order of issue, with how often each is repeated."""
        count = self.strategy.num_micro
        once = self.strategy.gather == "step"
        yield self.forward(True), 1
        yield self.backward(not once, False) + self.forward(not once), count - 1
        yield self.backward(True, True) + self.at_end(), 1

    def forward(self, gathers: bool) -> list[Collective]:
        """Of one microbatch; with its parameters, or without where they are there from an earlier one."""
        calls: list[Collective] = []
        for at, item in enumerate(self.flow.items):
            calls += self.before_forward(at) if gathers else []
            calls += self._own(at, item, "forward")
        return calls

    def backward(self, gradients: bool, last: bool) -> list[Collective]:
        """Of one microbatch: with the gradients of gathered parameters, and in the last with the all-reduces, but for
        those ``at_end``."""
        calls: list[Collective] = []
        for at in range(len(self.flow.items) - 1, -1, -1):
            calls += self.recomputed(at)
            calls += self.before_backward(at)
            calls += reversed(self._own(at, self.flow.items[at], "backward"))
            calls += self.after_backward(at, gradients, last)
        return calls

    def at_end(self) -> list[Collective]:
        """Reductions that wait until the last backward is over."""
        return self.after_backward(AT_END, False, True)

    def reductions(self) -> list[Collective]:
        """Every all-reduce of gradients."""
        return [self.reduced(bucket) for bucket in self.flow.buckets]

    def returns(self) -> list[Collective]:
        """The gradients of all gathered parameters, in the order in which backward completes them."""
        places = sorted(self.ready, reverse=True)
        return [call for at in places for gather in self.ready[at] for call in self.returned(gather)]

    def before_forward(self, at: int) -> list[Collective]:
        """Parameters that are sent for before item ``at``."""
        return self.gathered(self.flow.forward_sends.get(at, ()), "forward")

    def before_backward(self, at: int) -> list[Collective]:
        """Parameters that are sent for again before the backward of item ``at``."""
        return self.gathered(self.flow.backward_sends.get(at, ()), "backward")

    def recomputed(self, at: int) -> list[Collective]:
        """What is issued once more before the backward of item ``at``, the last of a segment."""
        calls: list[Collective] = []
        segment = self.flow.ends.get(at)
        for item in range(segment.first, segment.last + 1) if segment else ():
            calls += self.gathered(self.flow.recompute_sends.get(item, ()), RECOMPUTE)
            calls += (replace(call, phase=RECOMPUTE) for call in self._own(item, self.flow.items[item], "forward"))
        return calls

    def after_backward(self, at: int, gradients: bool, last: bool) -> list[Collective]:
        """What is issued because gradients are complete after the backward of item ``at``, or at the end (``AT_END``)."""
        calls = [call for gather in self.ready.get(at, ()) for call in self.returned(gather)] if gradients else []
        return calls + ([self.reduced(bucket) for bucket in self.complete.get(at, ())] if last else [])

    @cached_property
    def ready(self) -> Mapping[int, list[Gather]]:
        """After the backward of which item the gradients of which gathers are complete."""
        return _places(self.flow.gathers)

    @cached_property
    def complete(self) -> Mapping[int, list[Bucket]]:
        """After the backward of which item which buckets of gradients are complete."""
        return _places(self.flow.buckets)

    def gathered(self, places: Iterable[int], phase: str) -> list[Collective]:
        """What brings the parameters of these gathers."""
        calls: list[Collective] = []
        for gather in (self.flow.gathers[place] for place in places):
            if gather.flat:
                cause = gather.boxes[0].ref.name
                calls.append(Collective("all_gather", self._flat_bytes(gather), gather.step.axes, phase, cause))
            else:
                calls += self._boxed(gather.boxes[0], lambda step: step.forward, phase)
        return calls

    def returned(self, gather: Gather) -> list[Collective]:
        """What takes the gradients of a gather back."""
        cause = gather.boxes[0].ref.name
        if gather.flat:
            return [Collective("reduce_scatter", self._flat_bytes(gather), gather.step.axes, "backward", cause)]
        return self._boxed(gather.boxes[0], lambda step: step.backward, "backward")[::-1]

    def _flat_bytes(self, gather: Gather) -> int:
        return sum(box_bytes(self.graph, self.strategy, box)[0] for box in gather.boxes)

    def reduced(self, bucket: Bucket) -> Collective:
        """The all-reduce of a bucket of gradients."""
        total = sum(local_bytes(self.graph, self.strategy, name) for name in bucket.names)
        return Collective("all_reduce", total, bucket.axes, "sync", bucket.names[0])

    def _own(self, at: int, item: Item, phase: str) -> list[Collective]:
        """What one item of the program issues in a phase, in the order of forward."""
        if isinstance(item, Box):
            if item.key in self.flow.place or (phase == "backward" and at not in self.flow.passing):
                return []
            return self._boxed(item, lambda step: step.forward if phase == "forward" else step.backward, phase)
        return [call for call in self._internal[at] if call.phase == phase]

    @cached_property
    def _internal(self) -> Mapping[int, list[Collective]]:
        found: dict[int, list[Collective]] = {}
        mesh = self.strategy.mesh
        for at, item in enumerate(self.flow.items):
            if isinstance(item, Box) or item.signature is None:
                found[at] = []
                continue
            choices = axis_choices(self.graph, item.node, item.signature, mesh.ndim)
            found[at] = [
                Collective(call.kind, call.num_bytes, call.axes, call.phase, item.node.name)
                for call in internal_collectives(self.graph, item.node, choices, mesh)
            ]
        return found

    def _boxed(self, box: Box, action: Callable[..., str], phase: str) -> list[Collective]:
        """The collectives among a box's steps, in the order of forward."""
        sizes = box_bytes(self.graph, self.strategy, box)
        return [
            Collective(action(step), size, step.axes, phase, box.ref.name)
            for step, size in zip(box.steps, sizes, strict=True)
            if action(step) in COLLECTIVES
        ]


def _places(things: Iterable[Ready]) -> Mapping[int, list[Ready]]:
    """By the item after whose backward they are issued."""
    found: dict[int, list[Ready]] = {}
    for thing in things:
        found.setdefault(thing.ready, []).append(thing)
    return found
