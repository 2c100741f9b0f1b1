"""Pipelined strategies from the layouts of one stage: schedules, and the cuts of each, most promising first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from autosbp.costmodel.p2p_cost import LinkModel
from autosbp.costmodel.pipeline_timing import ChunkTimes, pipeline_time
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.pipeline import Pipeline
from autosbp.plan.plan import Strategy
from autosbp.plan.schedules import SCHEDULES, Schedule
from autosbp.program.deferred_wgrad import LINEAR
from autosbp.search.stages.partition import (
    CutPoints,
    Floats,
    StagePartitioner,
    StageProfiles,
    cut,
    find_cut_points,
    prefix_sums,
    stage_profile,
)

CHUNKS_PER_STAGE = (1, 2, 3, 4, 6, 8, 12, 16)
"""Allowed numbers of chunks per stage."""
WGRAD_SHARE = 1 / 3
"""Share of the weight gradient in a linear layer's forward and backward seconds."""
MOST_SIMULATED, MOST_PASSES = 3, 20_000
"""Limits of simulation.

Number of chunk counts simulated per schedule; and microbatches times chunks, above which the estimate is used.
"""
BUBBLE_LEFT_BY_WGRAD = 0.5
"""Approximate fraction of the bubble that deferred weight gradients leave."""
ROUNDING = 1e-9
MIN_BUBBLE = 0.3
"""Least bubble per other stage, in microbatches, due to messages and unequal chunks."""


@dataclass(frozen=True)
class ScheduleShape:
    """A schedule with a number of chunks per stage."""

    schedule: Schedule
    virtual: int


@dataclass(frozen=True, eq=False)
class _ChunkSeconds:
    """Seconds of one microbatch.

    Args:
        seconds: of each chunk, with its messages.
        deferred: part of each chunk that can be deferred.
        sends: of the messages before each chunk and after the last, one way.
    """

    seconds: Floats
    deferred: Floats
    sends: Floats


@dataclass(frozen=True, eq=False)
class _CutOption:
    """Cuts for a number of chunks per stage, and the approximate step time in seconds."""

    estimate: float
    virtual: int
    cuts: tuple[str, ...]
    work: _ChunkSeconds

    def simulated(self, stages: int, num_micro: int, schedule: Schedule) -> float:
        """Simulated step time, with backward twice as long as forward; the estimate if a simulation takes too long."""
        work = self.work
        if num_micro * len(work.seconds) > MOST_PASSES:
            return self.estimate
        own = work.seconds - work.sends[1:] - work.sends[:-1]
        put_off = work.deferred if schedule.splits_backward else np.zeros_like(own)
        columns = own / 3, 2 / 3 * own - put_off, put_off, work.sends[1:], work.sends[:-1]
        chunks = [ChunkTimes(*each) for each in zip(*(column.tolist() for column in columns), strict=True)]
        return pipeline_time(chunks, stages, num_micro, 0.0, schedule).step_s


def schedule_shapes(stages: int, num_micro: int, kinds: tuple[str, ...]) -> Iterator[ScheduleShape]:
    """Schedules and chunk counts that admit this number of microbatches."""
    for schedule in map(SCHEDULES.__getitem__, kinds):
        for virtual in CHUNKS_PER_STAGE:
            if schedule.supports_chunks(virtual) and schedule.supports_microbatches(num_micro, stages):
                yield ScheduleShape(schedule, virtual)


def pipelined_strategies(
    graph: LogicalGraph,
    strategy: Strategy,
    seconds: Mapping[str, float],
    stages: int,
    links: LinkModel,
    kinds: tuple[str, ...],
    starts: frozenset[str] | None = None,
    held: Mapping[str, int] | None = None,
    pace: Callable[[CutPoints], StageProfiles] | None = None,
    below_s: float = math.inf,
) -> Iterator[tuple[float, Strategy]]:
    """Cut ``strategy`` into stages for each schedule, with the fastest and with the fewest chunks per stage.

    Fewer chunks keep less memory.

    Args:
        graph: the whole graph, bound.
        strategy: layouts on one stage's mesh.
        seconds: of one microbatch, by op.
        stages: number of stages.
        links: cost model of messages between stages.
        kinds: names of the allowed schedules.
        starts: ops that a chunk may begin with; None allows any.
        held: stages of ops that the user gave.
        pace: for unlike stages, their times and memory at the cut points.
        below_s: yield nothing if all estimates are at least this.

    Yields:
        Estimated step time and strategy, fastest first.
    """
    places = find_cut_points(graph, strategy, seconds, starts, held)
    if pace is not None:
        places = replace(places, stage_profiles=pace(places))
    per_byte = seconds_per_byte(places, strategy, links)
    num_micro = strategy.num_micro
    deferred = _deferred(graph, strategy, seconds)
    # Each other stage adds forward and backward of a chunk to the bubble, less the weight gradients that fill it
    # (Narayanan et al. 2021, section 2.2; Qi et al. 2023, section 2.1).
    unfilled = 1 - 2 * sum(deferred.values()) / max(places.total_s, 1e-30)
    cutter = StagePartitioner(places, per_byte, stages)
    if num_micro * cutter.least_stage_s * (1 - ROUNDING) >= below_s:
        return
    cuts = {
        virtual: _cut(cutter, stages * virtual)
        for virtual in {shape.virtual for shape in schedule_shapes(stages, num_micro, kinds)}
        if stages * virtual <= len(places.names) + 1
    }
    found: dict[Schedule, list[_CutOption]] = {}
    for shape in schedule_shapes(stages, num_micro, kinds):
        place = cuts.get(shape.virtual)
        if place is not None:
            # A message-driven stage does not wait for its messages.
            work = _work(places, place, stages, 0.0 if shape.schedule.is_message_driven else per_byte, deferred)
            slowest = float(work.seconds.reshape(-1, stages).sum(axis=0).max())
            wait = 1 / shape.virtual
            if shape.schedule.splits_backward:
                # Stages run few passes ahead, so the slowest chunk of each round delays all.
                slowest = float(work.seconds.reshape(-1, stages).max(axis=1).sum())
                wait *= unfilled
            estimate = (num_micro + wait * (stages - 1)) * slowest
            found.setdefault(shape.schedule, []).append(_CutOption(estimate, shape.virtual, place, work))
    chosen: list[tuple[float, int, str, tuple[str, ...]]] = []
    for schedule, options in found.items():
        ranked = [
            (option.simulated(stages, num_micro, schedule), option.virtual, schedule.name, option.cuts)
            for option in _worth_simulating(options)
        ]
        chosen += {min(ranked), min(ranked, key=lambda each: each[1])}
    for estimate, _, name, place in sorted(chosen):
        yield estimate, replace(strategy, pipeline=Pipeline(stages, place, SCHEDULES[name]))


def bubble_per_stage(stages: int, num_micro: int, kinds: tuple[str, ...], most_chunks: int) -> float:
    """Approximate least bubble in microbatches per other stage, over the schedules that fit the microbatches."""
    found = [1.0]
    for shape in schedule_shapes(stages, num_micro, kinds):
        if shape.virtual * stages <= most_chunks and shape.schedule.interleaves:
            found.append((BUBBLE_LEFT_BY_WGRAD if shape.schedule.splits_backward else 1.0) / shape.virtual)
    return max(min(found), MIN_BUBBLE)


def _worth_simulating(options: list[_CutOption]) -> list[_CutOption]:
    """Options of one schedule worth a simulation: the lowest estimates, and the one with the fewest chunks."""
    quickest = sorted(options, key=lambda option: (option.estimate, option.virtual))[:MOST_SIMULATED]
    fewest = min(options, key=lambda option: option.virtual)
    return quickest if fewest in quickest else [*quickest, fewest]


def shortlist(found: list[tuple[float, Strategy]]) -> list[tuple[float, Strategy]]:
    """The two strategies with the lowest estimates, then some with less memory in case these do not fit.

    The latter have a low-memory schedule, or the first one's schedule with one chunk per stage.
    """
    ranked = sorted(found, key=lambda entry: entry[0])
    return ranked[:2] + [entry for entry in ranked[2:] if _is_low_memory(entry[1].pipeline, ranked[0][1].pipeline)]


def _is_low_memory(pipeline: Pipeline | None, first: Pipeline | None) -> bool:
    if pipeline is None or first is None:
        return False
    return pipeline.schedule.has_1f1b_memory or (pipeline.schedule == first.schedule and pipeline.num_virtual == 1)


def _cut(cutter: StagePartitioner, num_chunks: int) -> tuple[str, ...] | None:
    """Cuts within the estimated memory of all stages, or the fastest cuts if there are none."""
    found, places = cutter.cut(num_chunks), cutter.places
    if found is None and places.stage_profiles is not None:
        roomy = replace(places, stage_profiles=replace(places.stage_profiles, limits=None))
        return cut(roomy, num_chunks, cutter.seconds_per_byte, cutter.stages)
    return found


def _deferred(graph: LogicalGraph, strategy: Strategy, seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds of deferrable weight gradients by linear layer (``program.deferred_wgrad``).

    Deferrable are those of parameters that are read as stored, or gathered once a step.
    """
    once = strategy.gather == "step"
    found = {}
    for node in graph.nodes:
        if node.op == LINEAR and node.name in strategy.signatures:
            layouts = zip(node.refs(), strategy.signatures[node.name].ins, strict=True)
            weights = [(ref.name, layout) for ref, layout in layouts if ref.name in graph.parameter_names]
            if weights and all(once or strategy.parameters[name] == layout for name, layout in weights):
                found[node.name] = WGRAD_SHARE * seconds.get(node.name, 0.0)
    return found


def seconds_per_byte(places: CutPoints, strategy: Strategy, links: LinkModel) -> float:
    """Seconds per byte of a message from each rank of a stage to its peer in the next, at the median size."""
    size = max(1, round(float(np.median(places.crossing_bytes)))) if len(places.crossing_bytes) else 1
    ranks = np.arange(strategy.mesh.size)
    return links.even_exchange_s(ranks, ranks + strategy.mesh.size, size) / size


def _work(
    places: CutPoints, cuts: tuple[str, ...], stages: int, per_byte: float, deferred: Mapping[str, float]
) -> _ChunkSeconds:
    at = [places.names.index(name) for name in cuts]
    seconds = np.empty(len(cuts) + 1)
    for stage in range(stages):
        before_s, total_s, _ = stage_profile(places, stage)
        seconds[stage::stages] = np.diff(np.concatenate([[0.0], before_s[at], [total_s]]))[stage::stages]
    sends = per_byte * np.concatenate([[0.0], places.crossing_bytes[at], [0.0]])
    ends = [0, *(places.at[place] for place in at), len(places.program)]
    # Fractions of the estimated op seconds; a stage may be faster than these.
    usual = np.diff(np.concatenate([[0.0], places.before_s[at], [places.total_s]]))
    part = np.diff(prefix_sums(places.program, deferred)[ends]) / np.maximum(usual, 1e-30)
    return _ChunkSeconds(seconds + sends[1:] + sends[:-1], part * seconds, sends)
