"""Discrete-event simulation of one rank's step: the program on one queue, asynchronous collectives on queues per level.

All ranks do the same at the same time. Concurrent work shares: ops and collectives slow each other down by the factors
of ``Overlap``; collectives that cross the same level at once get equal parts of its bandwidth. Asynchronous collectives run
one after another per level, in order of issue; work of a communication thread runs one after another on its own queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from autosbp.costmodel.overlap import Overlap
from autosbp.costmodel.step_event import Event
from autosbp.utils.serialization import serializable


@dataclass(frozen=True, slots=True)
class EventSpan:
    """An event with its start and end in seconds from the start of the step."""

    event: Event
    start_s: float
    end_s: float


@dataclass(slots=True)
class _AsyncCollective:
    """An asynchronous collective; ``left_s`` are its remaining seconds if it ran alone."""

    event: Event
    left_s: float
    start_s: float = -1.0


@serializable
@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Seconds of the program by activity.

    The program computes, steps the optimizer, or waits for communication (``exposed``, by purpose); ``hidden_s`` is
    communication that it does not wait for.
    """

    compute_s: float = 0.0
    optimizer_s: float = 0.0
    exposed: Mapping[str, float] = field(default_factory=dict)
    hidden_s: float = 0.0

    @property
    def exposed_s(self) -> float:
        return sum(self.exposed.values())

    @property
    def seconds(self) -> float:
        """Total seconds without hidden communication."""
        return self.compute_s + self.optimizer_s + self.exposed_s

    def plus(self, other: StepSeconds, times: float = 1.0) -> StepSeconds:
        """Sum with ``times`` times ``other``; -1 subtracts it."""
        purposes = {**self.exposed, **other.exposed}
        return StepSeconds(
            self.compute_s + times * other.compute_s,
            self.optimizer_s + times * other.optimizer_s,
            {each: self.exposed.get(each, 0.0) + times * other.exposed.get(each, 0.0) for each in purposes},
            self.hidden_s + times * other.hidden_s,
        )

    def rounded(self) -> StepSeconds:
        """Copy with negative values, which come from rounding, set to 0."""
        exposed = {purpose: max(0.0, seconds) for purpose, seconds in self.exposed.items()}
        return StepSeconds(max(0.0, self.compute_s), max(0.0, self.optimizer_s), exposed, max(0.0, self.hidden_s))


@dataclass(slots=True)
class Simulation:
    """Runs events in order; ``now_s`` is the time at which the program has finished them. Not thread-safe."""

    overlap: Overlap
    now_s: float = 0.0
    spans: list[EventSpan] = field(default_factory=list)
    compute_s: float = 0.0
    optimizer_s: float = 0.0
    comm_s: float = 0.0
    exposed: dict[str, float] = field(default_factory=dict)
    _queues: dict[Hashable, deque[_AsyncCollective]] = field(default_factory=dict)
    _in_flight: set[Hashable] = field(default_factory=set)

    def run(self, events: Iterable[Event]) -> float:
        """Run more events.

        Returns:
            The time at which the program has finished them; asynchronous collectives may still be in flight.
        """
        for event in events:
            for key in event.after:
                self._wait_for(key)
            if event.category == "wait":
                continue
            if event.category == "comm":
                self.comm_s += event.duration_s
            if event.key is None:
                self._run_event(event)
            else:
                self._in_flight.add(event.key)
                queue = event.level if event.queue is None else event.queue
                self._queues.setdefault(queue, deque()).append(_AsyncCollective(event, event.duration_s))
        return self.now_s

    def drain(self) -> float:
        """Wait for all collectives in flight."""
        while self._in_flight:
            self._wait()
        return self.now_s

    @property
    def activity(self) -> StepSeconds:
        """Activity of the program so far.

        Communication that shares links may take longer than alone, so hidden communication is clipped at 0.
        """
        hidden_s = max(0.0, self.comm_s - sum(self.exposed.values()))
        return StepSeconds(self.compute_s, self.optimizer_s, self.exposed, hidden_s)

    def _run_event(self, event: Event) -> None:
        started_s, left_s = self.now_s, event.duration_s
        comm = event.category == "comm"
        while left_s > 0.0:
            if comm:
                rate = 1.0 / (1 + self._crossing(event.level))
            else:
                rate = 1.0 / (1.0 + self.overlap.compute) if self._in_flight else 1.0
            left_s -= rate * self._advance(left_s / rate, rate, event)
            if left_s <= 1e-12 * event.duration_s:
                break
        self.spans.append(EventSpan(event, started_s, self.now_s))
        if comm:
            self._expose(event, self.now_s - started_s)
        elif event.category == "optimizer":
            self.optimizer_s += self.now_s - started_s
        else:
            self.compute_s += self.now_s - started_s

    def _expose(self, event: Event, seconds: float) -> None:
        self.exposed[event.purpose] = self.exposed.get(event.purpose, 0.0) + seconds

    def _wait_for(self, key: Hashable) -> None:
        while key in self._in_flight:
            self._wait(key)

    def _wait(self, key: Hashable = None) -> None:
        """Let time pass until an asynchronous collective ends.

        The time counts as exposed for the first collective in the queue of ``key``, or in the longest queue.
        """
        queues = [queue for queue in self._queues.values() if queue]
        waited = next((queue for queue in queues if any(side.event.key == key for side in queue)), None)
        queue = waited or max(queues, key=lambda each: sum(side.left_s for side in each))
        event = queue[0].event
        self._expose(event, self._advance(inf, 1.0, None))

    def _advance(self, most_s: float, rate: float, main: Event | None) -> float:
        """Let at most ``most_s`` pass, until an asynchronous collective ends; returns the seconds that passed."""
        rates = {name: self._side_rate(queue[0].event, rate, main) for name, queue in self._queues.items() if queue}
        passed = min([most_s, *(self._queues[name][0].left_s / each for name, each in rates.items())])
        for name, each in rates.items():
            side = self._queues[name][0]
            if side.start_s < 0.0:
                side.start_s = self.now_s
            side.left_s -= each * passed
            if side.left_s <= 1e-12 * side.event.duration_s:
                self._queues[name].popleft()
                self._in_flight.discard(side.event.key)
                self.spans.append(EventSpan(side.event, side.start_s, self.now_s + passed))
        self.now_s += passed
        return passed

    def _side_rate(self, side: Event, rate: float, main: Event | None) -> float:
        if side.category != "comm":
            return 1.0
        alone = 1.0 / self._crossing(side.level)
        if main is None:
            return alone
        if main.category != "comm":
            return alone / (1.0 + self.overlap.network)
        return rate if main.level == side.level else alone

    def _crossing(self, level: int) -> int:
        """Number of asynchronous collectives in progress that cross a level."""
        heads = (queue[0].event for queue in self._queues.values() if queue)
        return sum(head.level == level and head.category == "comm" for head in heads)


def simulate_activity(events: Iterable[Event], overlap: Overlap) -> StepSeconds:
    """Activity of the program in these events, until everything that they start has ended."""
    simulation = Simulation(overlap)
    simulation.run(events)
    simulation.drain()
    return simulation.activity


def simulate_duration_s(events: Iterable[Event], overlap: Overlap) -> float:
    """Duration of these events, until everything that they start has ended."""
    simulation = Simulation(overlap)
    simulation.run(events)
    return simulation.drain()


class ProgramPart(NamedTuple):
    """A span of the program: it computes, or waits for collectives that cross links of ``level`` (-1 if unknown)."""

    seconds: float
    computes: bool
    level: int = -1


serializable(ProgramPart, *ProgramPart._fields)


def simulate_parts(events: Iterable[Event], overlap: Overlap) -> list[ProgramPart]:
    """``simulate_duration_s`` split into consecutive parts."""
    simulation = Simulation(overlap)
    simulation.run(events)
    end_s = simulation.drain()
    parts: list[ProgramPart] = []

    def add(seconds: float, computes: bool, level: int) -> None:
        if parts and parts[-1][1:] == (computes, level):
            parts[-1] = parts[-1]._replace(seconds=parts[-1].seconds + seconds)
        elif seconds > 0.0:
            parts.append(ProgramPart(seconds, computes, level))

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
