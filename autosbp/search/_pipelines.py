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
WEIGHTS_PART = 1 / 3
"""Of the seconds of a product with weights, forward and backward: what goes into the weights' gradients."""


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
    """``strategy`` cut into stages, for each schedule with as many chunks a stage as are quickest, and with the fewest, which
    keep least; the quickest by estimate first, with that estimate.

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
    # Forward and backward of a chunk are waited for, less the weights' gradients where these fill the wait (Narayanan et al.
    # 2021, section 2.2; Qi et al. 2023, section 2.1).
    unfilled = 1 - 2 * WEIGHTS_PART * _deferred(graph, strategy, seconds)
    cutter = Cutter(places, per_byte, stages)
    cuts = {
        virtual: _cut(cutter, stages * virtual)
        for virtual in {shape.virtual for shape in shapes(stages, num_micro, kinds)}
        if stages * virtual <= len(places.names) + 1
    }
    found: dict[tuple[str, bool], tuple[float, int, tuple[str, ...]]] = {}
    for shape in shapes(stages, num_micro, kinds):
        place = cuts.get(shape.virtual)
        if place is not None:
            # A message-driven stage does not wait for its messages.
            slowest = _slowest(places, place, stages, 0.0 if shape.schedule == MESSAGE_DRIVEN else per_byte)
            wait = 1 / shape.virtual
            if shape.schedule == ZERO_BUBBLE:
                wait *= unfilled
            estimate = (num_micro + wait * (stages - 1)) * slowest
            entry = (estimate, shape.virtual, place)
            fewest = found.setdefault((shape.schedule, True), entry)
            if entry is not fewest:
                found[shape.schedule, False] = min(found.get((shape.schedule, False), fewest), entry)
    ranked = sorted((entry, schedule) for (schedule, _), entry in found.items())
    for at, ((estimate, _, place), schedule) in enumerate(ranked):
        if not at or ranked[at - 1] != ranked[at]:
            yield estimate, replace(strategy, pipeline=Pipeline(stages, place, schedule))


def shortlist(found: list[tuple[float, Strategy]]) -> list[tuple[float, Strategy]]:
    """The quickest by estimate, then, should that not fit in memory, the quickest stored apart, and those that
    keep least: with the first one's schedule, and with any."""
    ranked = sorted(found, key=lambda entry: entry[0])
    if not ranked:
        return []
    apart = [entry for entry in ranked if entry[1].parameters == found[0][1].parameters]
    lean = [entry for entry in apart if _keeps_least(entry[1].pipeline, ranked[0][1].pipeline)]
    chosen: list[tuple[float, Strategy]] = []
    for entry in (ranked[0], *apart[:2], *lean):
        if not any(entry is other for other in chosen):
            chosen.append(entry)
    return chosen


def _keeps_least(pipeline: Pipeline | None, first: Pipeline | None) -> bool:
    if pipeline is None or first is None:
        return False
    return pipeline.schedule in LEAN or (pipeline.schedule == first.schedule and pipeline.num_virtual == 1)


def _cut(cutter: Cutter, num_chunks: int) -> tuple[str, ...] | None:
    """With room for all, by about what ops take, else wherever it is quickest."""
    found, places = cutter.cut(num_chunks), cutter.places
    if found is None and places.pace is not None:
        roomy = replace(places, pace=replace(places.pace, limits=None))
        return cut(roomy, num_chunks, cutter.seconds_per_byte, cutter.stages)
    return found


def _deferred(graph: LogicalGraph, strategy: Strategy, seconds: Mapping[str, float]) -> float:
    """Which part of all seconds is of products whose weights' gradients can wait: those that are not gathered for their use."""
    waiting = 0.0
    for node in graph.nodes:
        if node.op == LINEAR and node.name in strategy.signatures:
            layouts = zip(node.refs(), strategy.signatures[node.name].ins, strict=True)
            weights = [(ref.name, layout) for ref, layout in layouts if ref.name in graph.parameter_names]
            if weights and all(strategy.parameters[name] == layout for name, layout in weights):
                waiting += seconds.get(node.name, 0.0)
    return waiting / max(sum(seconds.values()), 1e-30)


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
