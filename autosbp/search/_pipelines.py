"""From layouts of one stage to pipelined strategies: schedules that fit, cuts of each, the most promising first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from autosbp.costmodel.deliveries import LinkModel
from autosbp.graph.ir import LogicalGraph
from autosbp.pipeline import LEAN, MESSAGE_DRIVEN, SCHEDULES, ZERO_BUBBLE, Pipeline
from autosbp.plan import Strategy
from autosbp.search._cuts import Cutter, Pace, Places, cut, find_places, pace_of

VIRTUAL = (1, 2, 3, 4, 6, 8, 12, 16)
"""Chunks that a stage may have."""
LINEAR = "aten.linear.default"
ZERO_BUBBLE_WAIT = 0.45
"""Of a microbatch in a stage, what a stage waits for each other one where weight gradients fill the waits, with any number
of chunks; by simulation of equal stages. Other schedules wait for one chunk (Narayanan et al. 2021, section 2.2)."""


@dataclass(frozen=True)
class Shape:
    """A schedule with so many chunks a stage."""

    schedule: str
    virtual: int


def shapes(stages: int, num_micro: int, kinds: tuple[str, ...]) -> Iterator[Shape]:
    """Schedules that take these microbatches."""
    for schedule in kinds:
        limits = SCHEDULES[schedule]
        for virtual in VIRTUAL:
            if limits.chunks(virtual) and limits.micro(num_micro, stages):
                yield Shape(schedule, virtual)


def pipelines(
    graph: LogicalGraph,
    strategy: Strategy,
    seconds: Mapping[str, float],
    stages: int,
    links: LinkModel,
    kinds: tuple[str, ...],
    starts: frozenset[str] | None = None,
    held: Mapping[str, int] | None = None,
    pace: Callable[[Places], Pace] | None = None,
) -> Iterator[tuple[float, Strategy]]:
    """``strategy`` cut into stages, for each schedule with as many chunks a stage as are quickest; the quickest by estimate
    first, with that estimate.

    Args:
        graph: the whole one, bound.
        strategy: layouts on one stage's mesh.
        seconds: of one microbatch, by op.
        kinds: schedules that are asked for.
        starts: ops that a chunk may begin with; any where there are none.
        held: stages of ops.
        pace: of stages that are not alike, given the places.
    """
    places = find_places(graph, strategy, seconds, starts, held)
    if pace is not None:
        places = replace(places, pace=pace(places))
    per_byte = seconds_per_byte(places, strategy, links)
    num_micro = strategy.num_micro
    deferred = _deferred(graph, strategy)
    cutter = Cutter(places, per_byte, stages)
    cuts = {
        virtual: _cut(cutter, stages * virtual)
        for virtual in {shape.virtual for shape in shapes(stages, num_micro, kinds)}
        if stages * virtual <= len(places.names) + 1
    }
    found: dict[str, tuple[float, int, tuple[str, ...]]] = {}
    for shape in shapes(stages, num_micro, kinds):
        place = cuts.get(shape.virtual)
        if place is not None:
            # A message-driven stage does not wait for its messages.
            slowest = _slowest(places, place, stages, 0.0 if shape.schedule == MESSAGE_DRIVEN else per_byte)
            wait = 1 / shape.virtual
            if shape.schedule == ZERO_BUBBLE:
                wait = deferred * ZERO_BUBBLE_WAIT + (1 - deferred) * wait
            estimate = (num_micro + wait * (stages - 1)) * slowest
            entry = (estimate, shape.virtual, place)
            found[shape.schedule] = min(found.get(shape.schedule, entry), entry)
    for schedule, (estimate, _, place) in sorted(found.items(), key=lambda item: (item[1][:2], item[0])):
        yield estimate, replace(strategy, pipeline=Pipeline(stages, place, schedule))


def shortlist(found: list[tuple[float, Strategy]]) -> list[tuple[float, Strategy]]:
    """The quickest by estimate, then, should that not fit in memory, the quickest stored apart, and those that
    keep least."""
    ranked = sorted(found, key=lambda entry: entry[0])
    if not ranked:
        return []
    apart = [entry for entry in ranked if entry[1].parameters == found[0][1].parameters]
    lean = [entry for entry in apart if entry[1].pipeline is not None and entry[1].pipeline.schedule in LEAN]
    chosen: list[tuple[float, Strategy]] = []
    for entry in (ranked[0], *apart[:2], *lean):
        if not any(entry is other for other in chosen):
            chosen.append(entry)
    return chosen


def _cut(cutter: Cutter, num_chunks: int) -> tuple[str, ...] | None:
    """With room for all, by about what ops take, else wherever it is quickest."""
    found, places = cutter.cut(num_chunks), cutter.places
    if found is None and places.pace is not None:
        roomy = replace(places, pace=replace(places.pace, limits=None))
        return cut(roomy, num_chunks, cutter.seconds_per_byte, cutter.stages)
    return found


def _deferred(graph: LogicalGraph, strategy: Strategy) -> float:
    """Which part of the weights, by bytes, has gradients that can wait: those that are not gathered for their use."""
    total = waiting = 0
    for node in graph.nodes:
        if node.op == LINEAR and node.name in strategy.signatures:
            for ref, layout in zip(node.refs(), strategy.signatures[node.name].ins, strict=True):
                if ref.name in graph.parameter_names:
                    total += graph.meta(ref).num_bytes
                    waiting += graph.meta(ref).num_bytes * (strategy.parameters[ref.name] == layout)
    return waiting / total if total else 0.0


def seconds_per_byte(places: Places, strategy: Strategy, links: LinkModel) -> float:
    """Of a message from each rank of a stage to its like in the next, of a size that is usual here."""
    size = max(1, round(float(np.median(places.crossing)))) if len(places.crossing) else 1
    ranks = np.arange(strategy.mesh.size)
    return links.even_exchange_s(ranks, ranks + strategy.mesh.size, size) / size


def _slowest(places: Places, cuts: tuple[str, ...], stages: int, per_byte: float) -> float:
    """Seconds of one microbatch in the slowest stage."""
    at = [places.names.index(name) for name in cuts]
    sends = per_byte * np.concatenate([[0.0], places.crossing[at], [0.0]])
    sent, most = sends[1:] + sends[:-1], 0.0
    for stage in range(stages):
        before_s, total_s, _ = pace_of(places, stage)
        work = np.diff(np.concatenate([[0.0], before_s[at], [total_s]]))
        most = max(most, float((work + sent)[stage::stages].sum()))
    return most
