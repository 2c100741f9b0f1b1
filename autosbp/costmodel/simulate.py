"""When everything of a step happens: the program on one queue, collectives that it does not wait for on the network's.

A discrete-event simulation of one rank (all ranks do the same at the same time). What runs at once shares: ops and
collectives slow each other down by the factors of ``Overlap``; two collectives that cross the same level have half of its
bandwidth each. Collectives beside the program run one after another per level, in the order in which they are issued.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
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


@handed_over
@dataclass(frozen=True, slots=True)
class Elapsed:
    """Seconds of the program by what it does: it computes, steps the optimizer, or waits for communication, which is
    ``exposed`` by purpose; ``hidden_s`` is the communication that it does not wait for."""

    compute_s: float = 0.0
    optimizer_s: float = 0.0
    exposed: Mapping[str, float] = field(default_factory=dict)
    hidden_s: float = 0.0

    @property
    def exposed_s(self) -> float:
        return sum(self.exposed.values())

    @property
    def seconds(self) -> float:
        """All of it but for what is hidden."""
        return self.compute_s + self.optimizer_s + self.exposed_s

    def plus(self, other: Elapsed, times: float = 1.0) -> Elapsed:
        """With so many times another one; -1 takes it away."""
        purposes = {**self.exposed, **other.exposed}
        return Elapsed(
            self.compute_s + times * other.compute_s,
            self.optimizer_s + times * other.optimizer_s,
            {each: self.exposed.get(each, 0.0) + times * other.exposed.get(each, 0.0) for each in purposes},
            self.hidden_s + times * other.hidden_s,
        )

    def rounded(self) -> Elapsed:
        """Without what is below 0 by rounding."""
        exposed = {purpose: max(0.0, seconds) for purpose, seconds in self.exposed.items()}
        return Elapsed(max(0.0, self.compute_s), max(0.0, self.optimizer_s), exposed, max(0.0, self.hidden_s))


@dataclass(slots=True)
class Simulation:
    """Runs events in order; ``now_s`` is when the program is done with those so far. Not safe across threads."""

    overlap: Overlap
    now_s: float = 0.0
    spans: list[Span] = field(default_factory=list)
    compute_s: float = 0.0
    optimizer_s: float = 0.0
    comm_s: float = 0.0
    exposed: dict[str, float] = field(default_factory=dict)
    _queues: dict[int, deque[_Side]] = field(default_factory=dict)
    _under_way: set[Hashable] = field(default_factory=set)

    def run(self, events: Iterable[Event]) -> float:
        """Add events; the time at which the program is done with them, whatever else is still under way."""
        for event in events:
            for key in event.after:
                self._wait_for(key)
            if event.category == "wait":
                continue
            if event.category == "comm":
                self.comm_s += event.duration_s
            if event.key is None:
                self._do(event)
            else:
                self._under_way.add(event.key)
                self._queues.setdefault(event.level, deque()).append(_Side(event, event.duration_s))
        return self.now_s

    def drain(self) -> float:
        """Wait for all that is under way."""
        while self._under_way:
            self._wait()
        return self.now_s

    @property
    def elapsed(self) -> Elapsed:
        """What the program did so far. Communication that shares links may take longer than alone: none of that is hidden."""
        hidden_s = max(0.0, self.comm_s - sum(self.exposed.values()))
        return Elapsed(self.compute_s, self.optimizer_s, self.exposed, hidden_s)

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
        if comm:
            self._expose(event, self.now_s - started_s)
        elif event.category == "optimizer":
            self.optimizer_s += self.now_s - started_s
        else:
            self.compute_s += self.now_s - started_s

    def _expose(self, event: Event, seconds: float) -> None:
        self.exposed[event.purpose] = self.exposed.get(event.purpose, 0.0) + seconds

    def _wait_for(self, key: Hashable) -> None:
        while key in self._under_way:
            self._wait(key)

    def _wait(self, key: Hashable = None) -> None:
        """Until something beside the program ends; the time counts to what is first in the queue of what is waited for, or in
        the one that takes longest."""
        queues = [queue for queue in self._queues.values() if queue]
        waited = next((queue for queue in queues if any(side.event.key == key for side in queue)), None)
        queue = waited or max(queues, key=lambda each: sum(side.left_s for side in each))
        event = queue[0].event
        self._expose(event, self._pass(inf, 1.0, None))

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


def elapsed(events: Iterable[Event], overlap: Overlap) -> Elapsed:
    """What the program does in these events, to the end of all that they start."""
    simulation = Simulation(overlap)
    simulation.run(events)
    simulation.drain()
    return simulation.elapsed


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
