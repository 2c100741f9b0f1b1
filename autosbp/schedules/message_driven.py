"""Timeline of a message-driven pipeline: stages follow no fixed order and act on messages that have arrived.

A stage is an actor with registers (OneFlow, section 4; ``pipeline_limit`` of Singh and Bhatele 2022, Algorithm 2).
Stage s of p, counted from 0, has p - s registers, one for each microbatch between its forward and the end of its
backward. An idle stage runs the oldest backward whose gradient has arrived, else the next forward whose input has
arrived, if a register is free.

Messages overlap with passes and are sequential per link and direction. Gradients have ``GRADIENT_REGISTERS`` at both
ends: at the sender for unsent gradients, including the one being computed, and at the receiver for received gradients,
including the one being used. A message starts when a register is free at its receiver, and frees the sender's on
arrival. Inputs need no registers of their own: an input that was received and whose gradient was not yet returned holds
a register of the previous stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from autosbp.schedules.passes import BACKWARD, FORWARD, Pass

GRADIENT_REGISTERS = 2


@dataclass(frozen=True, slots=True)
class StageTimeline:
    """One pass of a stage, in seconds from the start of the step."""

    what: Pass
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """Seconds of one microbatch in a stage: passes, message to the next stage, gradient to the previous one."""

    forward_s: float
    backward_s: float
    send_s: float
    gradient_send_s: float


def message_driven(stages: Sequence[StageSeconds], num_micro: int) -> list[list[StageTimeline]]:
    """Simulate one step.

    Events at the same time are ordered so that those that free something come first. The result therefore does not
    depend on the order of stages.

    Returns:
        The passes of each stage, in the order in which they run.
    """
    run = _Run(stages, num_micro)
    while run.events:
        now = run.events[0][0]
        while run.events and run.events[0][0] == now:
            _, _, kind, stage = heappop(run.events)
            run.ended(kind, stage)
        run.start_messages(now)
        # A message that takes no time may bring a gradient, whose backward precedes a forward pass.
        if not run.events or run.events[0][0] > now:
            run.work(now)
    return [actor.passes for actor in run.actors]


@dataclass(slots=True)
class _Actor:
    """State of a stage.

    Counts are of microbatches, which come in order: passes started and done, messages sent and arrived.
    """

    passes: list[StageTimeline] = field(default_factory=list)
    running: bool = False
    forwards: int = 0  # started
    forwards_done: int = 0  # done
    backwards: int = 0
    backwards_done: int = 0
    inputs: int = 0  # arrived
    gradients: int = 0
    ahead: int = 0  # messages started to the next stage
    back: int = 0  # messages started to the previous stage
    sends_ahead: bool = False  # a message is in flight
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
        """Handle the end of a pass or the arrival of a message."""
        actor = self.actors[stage]
        if kind == "ahead":
            actor.sends_ahead = False
            self.actors[stage + 1].inputs += 1
        elif kind == "back":
            actor.sends_back = False
            self.actors[stage - 1].gradients += 1
        else:
            actor.running = False
            actor.forwards_done += kind == "forward"
            actor.backwards_done += kind == "backward"
            if kind == "forward" and stage == len(self.stages) - 1:
                actor.gradients += 1  # the loss's own gradient

    def start_messages(self, now: float) -> None:
        """Start all messages that can start."""
        for stage in range(len(self.stages)):
            self._send(stage, now)

    def work(self, now: float) -> None:
        """Start all passes that can start."""
        for stage in range(len(self.stages)):
            self._pass(stage, now)

    def _pass(self, stage: int, now: float) -> None:
        actor, seconds = self.actors[stage], self.stages[stage]
        if actor.running:
            return
        if actor.backwards < actor.gradients and self._has_room_to_return(stage):
            self._begin(stage, now, BACKWARD, actor.backwards, seconds.backward_s)
            actor.backwards += 1
        elif actor.forwards < actor.inputs and actor.forwards - actor.backwards_done < len(self.stages) - stage:
            self._begin(stage, now, FORWARD, actor.forwards, seconds.forward_s)
            actor.forwards += 1

    def _has_room_to_return(self, stage: int) -> bool:
        if stage == 0:
            return True
        actor = self.actors[stage]
        return actor.backwards - (actor.back - actor.sends_back) < GRADIENT_REGISTERS

    def _begin(self, stage: int, now: float, kind: str, micro: int, seconds: float) -> None:
        self.actors[stage].running = True
        self.actors[stage].passes.append(StageTimeline(Pass(kind, stage, micro), now, now + seconds))
        self._schedule_event(now + seconds, kind, stage)

    def _send(self, stage: int, now: float) -> None:
        actor, seconds = self.actors[stage], self.stages[stage]
        if not actor.sends_ahead and stage + 1 < len(self.stages) and actor.ahead < actor.forwards_done:
            actor.sends_ahead = True
            actor.ahead += 1
            self._schedule_event(now + seconds.send_s, "ahead", stage)
        if not actor.sends_back and stage > 0 and actor.back < actor.backwards_done:
            before = self.actors[stage - 1]
            if actor.back - before.backwards_done < GRADIENT_REGISTERS:
                actor.sends_back = True
                actor.back += 1
                self._schedule_event(now + seconds.gradient_send_s, "back", stage)

    def _schedule_event(self, when: float, kind: str, stage: int) -> None:
        heappush(self.events, (when, _ENDS.index(kind), kind, stage))
