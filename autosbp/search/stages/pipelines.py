"""From layouts of one stage to pipelined strategies: schedules that fit, cuts of each, the most promising first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from autosbp.costmodel.deliveries import LinkModel
from autosbp.costmodel.pipeline import Chunk, pipeline_time
from autosbp.graph.ir import LogicalGraph
from autosbp.pipeline import Pipeline
from autosbp.plan import Strategy
from autosbp.sbp.deferral import LINEAR
from autosbp.schedules import SCHEDULES, Schedule
from autosbp.search.stages.cuts import Cutter, Floats, Pace, Places, cut, find_places, pace_of, sums_before

VIRTUAL = (1, 2, 3, 4, 6, 8, 12, 16)
"""Chunks that a stage may have."""
WEIGHTS_PART = 1 / 3
"""Of the seconds of a product with weights, forward and backward: what goes into the weights' gradients."""
MOST_SIMULATED, MOST_PASSES = 3, 20_000
"""Numbers of chunks a stage, of each schedule, that are simulated; and microbatches times chunks up to which that is quick."""
UNFILLED = 0.5
"""Of waits: what weights' gradients leave, by about."""
ROUNDING = 1e-9
SHORT_WAIT = 0.3
"""Of a microbatch: what stages wait for each other in any case, as messages and unequal chunks have it."""


@dataclass(frozen=True)
class Shape:
    """A schedule with so many chunks a stage."""

    schedule: Schedule
    virtual: int


@dataclass(frozen=True, eq=False)
class _Work:
    """Seconds of one microbatch in each chunk, its messages included; what of it may be put off; and seconds of the messages
    before each chunk and behind the last, one way."""

    seconds: Floats
    deferred: Floats
    sends: Floats


@dataclass(frozen=True, eq=False)
class _Option:
    """Cuts for so many chunks a stage, and about what a step takes with them."""

    estimate: float
    virtual: int
    cuts: tuple[str, ...]
    work: _Work

    def simulated(self, stages: int, num_micro: int, schedule: Schedule) -> float:
        """The step, pass by pass, with backward twice as long as forward; the estimate where that takes long."""
        work = self.work
        if num_micro * len(work.seconds) > MOST_PASSES:
            return self.estimate
        own = work.seconds - work.sends[1:] - work.sends[:-1]
        put_off = work.deferred if schedule.splits_backward else np.zeros_like(own)
        columns = own / 3, 2 / 3 * own - put_off, put_off, work.sends[1:], work.sends[:-1]
        chunks = [Chunk(*each) for each in zip(*(column.tolist() for column in columns), strict=True)]
        return pipeline_time(chunks, stages, num_micro, 0.0, schedule).step_s


def shapes(stages: int, num_micro: int, kinds: tuple[str, ...]) -> Iterator[Shape]:
    """Schedules that take these microbatches."""
    for schedule in map(SCHEDULES.__getitem__, kinds):
        for virtual in VIRTUAL:
            if schedule.takes_chunks(virtual) and schedule.takes_micro(num_micro, stages):
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
    below_s: float = math.inf,
) -> Iterator[tuple[float, Strategy]]:
    """``strategy`` cut into stages, for each schedule with as many chunks a stage as are quickest, and with the fewest, which
    keep least; the quickest by estimate first, with that estimate. None where all estimates would be ``below_s`` or more.

    Args:
        graph: the whole one, bound.
        strategy: layouts on one stage's mesh.
        seconds: of one microbatch, by op.
        kinds: names of the schedules that are asked for.
        starts: ops that a chunk may begin with; any where there are none.
        held: stages of ops.
        pace: of stages that are not alike, given the places.
    """
    places = find_places(graph, strategy, seconds, starts, held)
    if pace is not None:
        places = replace(places, pace=pace(places))
    per_byte = seconds_per_byte(places, strategy, links)
    num_micro = strategy.num_micro
    deferred = _deferred(graph, strategy, seconds)
    # Forward and backward of a chunk are waited for, less the weights' gradients where these fill the wait (Narayanan et al.
    # 2021, section 2.2; Qi et al. 2023, section 2.1).
    unfilled = 1 - 2 * sum(deferred.values()) / max(places.total_s, 1e-30)
    cutter = Cutter(places, per_byte, stages)
    if num_micro * cutter.least_stage_s * (1 - ROUNDING) >= below_s:
        return
    cuts = {
        virtual: _cut(cutter, stages * virtual)
        for virtual in {shape.virtual for shape in shapes(stages, num_micro, kinds)}
        if stages * virtual <= len(places.names) + 1
    }
    found: dict[Schedule, list[_Option]] = {}
    for shape in shapes(stages, num_micro, kinds):
        place = cuts.get(shape.virtual)
        if place is not None:
            # A message-driven stage does not wait for its messages.
            work = _work(places, place, stages, 0.0 if shape.schedule.is_message_driven else per_byte, deferred)
            slowest = float(work.seconds.reshape(-1, stages).sum(axis=0).max())
            wait = 1 / shape.virtual
            if shape.schedule.splits_backward:
                # Stages run few passes ahead, so that the slowest chunk of each round holds up all.
                slowest = float(work.seconds.reshape(-1, stages).max(axis=1).sum())
                wait *= unfilled
            estimate = (num_micro + wait * (stages - 1)) * slowest
            found.setdefault(shape.schedule, []).append(_Option(estimate, shape.virtual, place, work))
    chosen: list[tuple[float, int, str, tuple[str, ...]]] = []
    for schedule, options in found.items():
        ranked = [
            (option.simulated(stages, num_micro, schedule), option.virtual, schedule.name, option.cuts)
            for option in _promising(options)
        ]
        chosen += {min(ranked), min(ranked, key=lambda each: each[1])}
    for estimate, _, name, place in sorted(chosen):
        yield estimate, replace(strategy, pipeline=Pipeline(stages, place, SCHEDULES[name]))


def waiting(stages: int, num_micro: int, kinds: tuple[str, ...], most_chunks: int) -> float:
    """How many microbatches a stage waits for each other one, under schedules that take these: what they may come to, by
    about."""
    found = [1.0]
    for shape in shapes(stages, num_micro, kinds):
        if shape.virtual * stages <= most_chunks and shape.schedule.interleaves:
            found.append((UNFILLED if shape.schedule.splits_backward else 1.0) / shape.virtual)
    return max(min(found), SHORT_WAIT)


def _promising(options: list[_Option]) -> list[_Option]:
    """Those of one schedule that are worth a simulation: the quickest by estimate, and the one with the fewest chunks."""
    quickest = sorted(options, key=lambda option: (option.estimate, option.virtual))[:MOST_SIMULATED]
    fewest = min(options, key=lambda option: option.virtual)
    return quickest if fewest in quickest else [*quickest, fewest]


def shortlist(found: list[tuple[float, Strategy]]) -> list[tuple[float, Strategy]]:
    """The two that are quickest by estimate, then, should these not fit in memory, those that keep least: with the first one's
    schedule, and with any."""
    ranked = sorted(found, key=lambda entry: entry[0])
    return ranked[:2] + [entry for entry in ranked[2:] if _keeps_least(entry[1].pipeline, ranked[0][1].pipeline)]


def _keeps_least(pipeline: Pipeline | None, first: Pipeline | None) -> bool:
    if pipeline is None or first is None:
        return False
    return pipeline.schedule.is_lean or (pipeline.schedule == first.schedule and pipeline.num_virtual == 1)


def _cut(cutter: Cutter, num_chunks: int) -> tuple[str, ...] | None:
    """With room for all, by about what ops take, else wherever it is quickest."""
    found, places = cutter.cut(num_chunks), cutter.places
    if found is None and places.pace is not None:
        roomy = replace(places, pace=replace(places.pace, limits=None))
        return cut(roomy, num_chunks, cutter.seconds_per_byte, cutter.stages)
    return found


def _deferred(graph: LogicalGraph, strategy: Strategy, seconds: Mapping[str, float]) -> dict[str, float]:
    """Of products, by name, what goes into gradients of weights that can wait (``sbp.deferral``): those of parameters that are
    read as they are stored, or gathered once a step."""
    once = strategy.gather == "step"
    found = {}
    for node in graph.nodes:
        if node.op == LINEAR and node.name in strategy.signatures:
            layouts = zip(node.refs(), strategy.signatures[node.name].ins, strict=True)
            weights = [(ref.name, layout) for ref, layout in layouts if ref.name in graph.parameter_names]
            if weights and all(once or strategy.parameters[name] == layout for name, layout in weights):
                found[node.name] = WEIGHTS_PART * seconds.get(node.name, 0.0)
    return found


def seconds_per_byte(places: Places, strategy: Strategy, links: LinkModel) -> float:
    """Of a message from each rank of a stage to its like in the next, of a size that is usual here."""
    size = max(1, round(float(np.median(places.crossing)))) if len(places.crossing) else 1
    ranks = np.arange(strategy.mesh.size)
    return links.even_exchange_s(ranks, ranks + strategy.mesh.size, size) / size


def _work(places: Places, cuts: tuple[str, ...], stages: int, per_byte: float, deferred: Mapping[str, float]) -> _Work:
    at = [places.names.index(name) for name in cuts]
    seconds = np.empty(len(cuts) + 1)
    for stage in range(stages):
        before_s, total_s, _ = pace_of(places, stage)
        seconds[stage::stages] = np.diff(np.concatenate([[0.0], before_s[at], [total_s]]))[stage::stages]
    sends = per_byte * np.concatenate([[0.0], places.crossing[at], [0.0]])
    ends = [0, *(places.at[place] for place in at), len(places.program)]
    # Of what ops take by about; a stage may be quicker than that.
    usual = np.diff(np.concatenate([[0.0], places.before_s[at], [places.total_s]]))
    part = np.diff(sums_before(places.program, deferred)[ends]) / np.maximum(usual, 1e-30)
    return _Work(seconds + sends[1:] + sends[:-1], part * seconds, sends)
