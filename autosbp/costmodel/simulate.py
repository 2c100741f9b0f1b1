"""When everything of a step happens: the program on one queue, collectives that it does not wait for on the network's.

A discrete-event simulation of one rank (all ranks do the same at the same time). What runs at once shares: ops and
collectives slow each other down by the factors of ``Overlap``; two collectives that cross the same level have half of its
bandwidth each. Collectives beside the program run one after another per level, in the order in which they are issued.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from autosbp.costmodel.overlap import Overlap
from autosbp.costmodel.timeline_event import Event
from autosbp.handed import handed_over


@dataclass(frozen=True, slots=True)
class Span:
    """An event with its begin and end in seconds from the start of the step."""

    event: Event
    start_s: float
    end_s: float


@dataclass(slots=True)
class _Side:
    """A collective beside the program, with the seconds that it still needs alone."""

    event: Event
    left_s: float
    start_s: float = -1.0


@dataclass(slots=True)
class Simulation:
    """Runs events in order; ``now_s`` is when the program is done with those so far. Not safe across threads."""

    overlap: Overlap
    now_s: float = 0.0
    spans: list[Span] = field(default_factory=list)
    _queues: dict[int, deque[_Side]] = field(default_factory=dict)
    _under_way: set[Hashable] = field(default_factory=set)

    def run(self, events: Iterable[Event]) -> float:
        """Add events; the time at which the program is done with them, whatever else is still under way."""
        for event in events:
            for key in event.after:
                self._wait_for(key)
            if event.category == "wait":
                continue
            if event.key is None:
                self._do(event)
            else:
                self._under_way.add(event.key)
                self._queues.setdefault(event.level, deque()).append(_Side(event, event.duration_s))
        return self.now_s

    def drain(self) -> float:
        """Wait for all that is under way."""
        while self._under_way:
            self._pass(inf, 1.0, None)
        return self.now_s

    def _do(self, event: Event) -> None:
        started_s, left_s = self.now_s, event.duration_s
        comm = event.category == "comm"
        while left_s > 0.0:
            if comm:
                rate = 0.5 if self._queues.get(event.level) else 1.0
            else:
                rate = 1.0 / (1.0 + self.overlap.compute) if self._under_way else 1.0
            left_s -= rate * self._pass(left_s / rate, rate, event)
            if left_s <= 1e-12 * event.duration_s:
                break
        self.spans.append(Span(event, started_s, self.now_s))

    def _wait_for(self, key: Hashable) -> None:
        while key in self._under_way:
            self._pass(inf, 1.0, None)

    def _pass(self, most_s: float, rate: float, main: Event | None) -> float:
        """Let time pass until ``most_s`` are over or something beside the program ends; how long that was."""
        rates = {level: self._side_rate(level, rate, main) for level, queue in self._queues.items() if queue}
        passed = min([most_s, *(self._queues[level][0].left_s / each for level, each in rates.items())])
        for level, each in rates.items():
            side = self._queues[level][0]
            if side.start_s < 0.0:
                side.start_s = self.now_s
            side.left_s -= each * passed
            if side.left_s <= 1e-12 * side.event.duration_s:
                self._queues[level].popleft()
                self._under_way.discard(side.event.key)
                self.spans.append(Span(side.event, side.start_s, self.now_s + passed))
        self.now_s += passed
        return passed

    def _side_rate(self, level: int, rate: float, main: Event | None) -> float:
        if main is None:
            return 1.0
        if main.category != "comm":
            return 1.0 / (1.0 + self.overlap.network)
        return rate if main.level == level else 1.0


def alone_s(events: Iterable[Event], overlap: Overlap) -> float:
    """Seconds of these events, to the end of all that they start."""
    simulation = Simulation(overlap)
    simulation.run(events)
    return simulation.drain()


class Part(NamedTuple):
    """Of what the program does, seconds in which it computes, or waits for collectives that cross links of this level; -1
    where it waits for none."""

    seconds: float
    computes: bool
    level: int = -1


handed_over(Part, *Part._fields)


def alone_parts(events: Iterable[Event], overlap: Overlap) -> list[Part]:
    """The seconds of ``alone_s``, one part behind the other."""
    simulation = Simulation(overlap)
    simulation.run(events)
    end_s = simulation.drain()
    parts: list[Part] = []

    def add(seconds: float, computes: bool, level: int) -> None:
        if parts and parts[-1][1:] == (computes, level):
            parts[-1] = parts[-1]._replace(seconds=parts[-1].seconds + seconds)
        elif seconds > 0.0:
            parts.append(Part(seconds, computes, level))

    beside = {span.end_s: span.event.level for span in simulation.spans if span.event.key is not None}
    done_s = 0.0
    for span in simulation.spans:
        if span.event.key is not None or span.end_s <= span.start_s:
            continue
        if span.start_s > done_s:
            add(span.start_s - done_s, False, beside.get(span.start_s, -1))
        computes = span.event.category != "comm"
        add(span.end_s - span.start_s, computes, -1 if computes else span.event.level)
        done_s = span.end_s
    if end_s > done_s:
        add(end_s - done_s, False, beside.get(end_s, -1))
    return parts
