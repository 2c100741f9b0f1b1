"""When the passes of a message-driven pipeline run: no order is given, a stage acts on what has arrived.

A stage is an actor with registers (OneFlow, section 4; ``pipeline_limit`` of Singh and Bhatele 2022, Algorithm 2). It has
p - s of them, counted from 0, for microbatches between their forward and the end of their backward. Whenever it is idle it
runs the oldest backward whose gradient is there, else the next forward whose input is there, if a register is free.
Messages go beside the passes, one after another over each link and direction. Gradients have ``GRADIENT_REGISTERS`` at
both ends: what a stage has yet to send, with the one that it makes, and what it has received, with the one that it works
on. A message begins when a register is free at its receiver, and frees the sender's when it is there. Inputs need none of
their own: what a stage has received and not given back holds a register of the stage before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from autosbp.costmodel.pipeline_passes import BACKWARD, FORWARD, Pass

GRADIENT_REGISTERS = 2


@dataclass(frozen=True, slots=True)
class Timed:
    """A pass of a stage, in seconds from the beginning of the step."""

    what: Pass
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """One microbatch in a stage: its passes, and its messages to the stage behind and, of gradients, to the one before."""

    forward_s: float
    backward_s: float
    send_s: float
    return_s: float


def message_driven(stages: Sequence[StageSeconds], num_micro: int) -> list[list[Timed]]:
    """Simulate one step: the passes of each stage, in the order in which they run. Of what happens at the same moment, what
    frees something comes first, so that the result does not depend on the order of stages."""
    run = _Run(stages, num_micro)
    while run.events:
        now = run.events[0][0]
        while run.events and run.events[0][0] == now:
            _, _, kind, stage = heappop(run.events)
            run.ended(kind, stage)
        run.send(now)
        # A message that takes no time may bring a gradient, which goes before a forward pass.
        if not run.events or run.events[0][0] > now:
            run.work(now)
    return [actor.passes for actor in run.actors]


@dataclass(slots=True)
class _Actor:
    """A stage. Counts are of microbatches, which come in order: those begun and done, and messages begun and arrived."""

    passes: list[Timed] = field(default_factory=list)
    running: bool = False
    forwards: int = 0  # begun
    forwarded: int = 0  # done
    backwards: int = 0
    backed: int = 0
    inputs: int = 0  # arrived
    gradients: int = 0
    ahead: int = 0  # messages begun to the stage behind
    back: int = 0  # and to the one before
    sends_ahead: bool = False  # one is under way
    sends_back: bool = False


_ENDS = ("forward", "backward", "ahead", "back")


class _Run:
    def __init__(self, stages: Sequence[StageSeconds], num_micro: int) -> None:
        self.stages, self.num_micro = stages, num_micro
        self.actors = [_Actor() for _ in stages]
        self.actors[0].inputs = num_micro
        self.events: list[tuple[float, int, str, int]] = []
        self.work(0.0)

    def ended(self, kind: str, stage: int) -> None:
        """A pass is over, or a message has arrived."""
        actor = self.actors[stage]
        if kind == "ahead":
            actor.sends_ahead = False
            self.actors[stage + 1].inputs += 1
        elif kind == "back":
            actor.sends_back = False
            self.actors[stage - 1].gradients += 1
        else:
            actor.running = False
            actor.forwarded += kind == "forward"
            actor.backed += kind == "backward"
            if kind == "forward" and stage == len(self.stages) - 1:
                actor.gradients += 1  # the loss's own

    def send(self, now: float) -> None:
        """Begin all messages that can."""
        for stage in range(len(self.stages)):
            self._send(stage, now)

    def work(self, now: float) -> None:
        """Begin all passes that can."""
        for stage in range(len(self.stages)):
            self._pass(stage, now)

    def _pass(self, stage: int, now: float) -> None:
        actor, seconds = self.actors[stage], self.stages[stage]
        if actor.running:
            return
        if actor.backwards < actor.gradients and self._has_room_to_return(stage):
            self._begin(stage, now, BACKWARD, actor.backwards, seconds.backward_s)
            actor.backwards += 1
        elif actor.forwards < actor.inputs and actor.forwards - actor.backed < len(self.stages) - stage:
            self._begin(stage, now, FORWARD, actor.forwards, seconds.forward_s)
            actor.forwards += 1

    def _has_room_to_return(self, stage: int) -> bool:
        if stage == 0:
            return True
        actor = self.actors[stage]
        return actor.backwards - (actor.back - actor.sends_back) < GRADIENT_REGISTERS

    def _begin(self, stage: int, now: float, kind: str, micro: int, seconds: float) -> None:
        self.actors[stage].running = True
        self.actors[stage].passes.append(Timed(Pass(kind, stage, micro), now, now + seconds))
        self._at(now + seconds, kind, stage)

    def _send(self, stage: int, now: float) -> None:
        actor, seconds = self.actors[stage], self.stages[stage]
        if not actor.sends_ahead and stage + 1 < len(self.stages) and actor.ahead < actor.forwarded:
            actor.sends_ahead = True
            actor.ahead += 1
            self._at(now + seconds.send_s, "ahead", stage)
        if not actor.sends_back and stage > 0 and actor.back < actor.backed:
            before = self.actors[stage - 1]
            if actor.back - before.backed < GRADIENT_REGISTERS:
                actor.sends_back = True
                actor.back += 1
                self._at(now + seconds.return_s, "back", stage)

    def _at(self, when: float, kind: str, stage: int) -> None:
        heappush(self.events, (when, _ENDS.index(kind), kind, stage))
