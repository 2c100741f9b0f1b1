"""Partition of a model into pipeline chunks that minimises the slowest chunk, messages included.

Exact dynamic programming over the places that the fewest bytes cross (after each transformer block, one activation).
Places that more bytes cross are added only while they make the slowest chunk faster.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from autosbp.costmodel.pipeline_program import local_value_bytes
from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.native import LOOPS
from autosbp.plan.plan import Strategy

Floats = NDArray[np.float64]
MAX_PLACES, PLACES_GROWTH = 512, 1.5
NEAR_EVEN = 1.02
"""Slowest chunk relative to an equal share, below which no more places are added."""
CEILING_FACTORS = (1.05, 1.25, 1.6, 2.5, 5.0, np.inf)
"""Ceilings for chunk times, relative to a lower bound, tried in turn."""


@dataclass(frozen=True)
class KeptBlocks:
    """Checkpointing of stages that keep as many blocks as fit and recompute the others.

    Args:
        before_blocks, total_blocks: number of blocks before each place, and in all.
        again_s, total_again_s: seconds of recomputing the ops before each place, and of all.
        kept_bytes: per stage, additional bytes of a block that is kept, over all microbatches in flight.
        handed_bytes: per stage, bytes of a block's saved inputs.
    """

    before_blocks: Floats
    total_blocks: float
    again_s: Floats
    total_recompute_s: float
    kept_bytes: tuple[float, ...]
    saved_input_bytes: tuple[float, ...]


@dataclass(frozen=True)
class StageProfiles:
    """Times and memory of unlike stages.

    Args:
        before_s, total_s: per stage, seconds of one microbatch for the ops before each place, and for all, with
            recomputation.
        before_bytes, total_bytes: bytes of these ops in a stage.
        limits: bytes that each stage has for ops; None if memory does not matter.
        keeping: if given, blocks for which there is room are not recomputed.
    """

    before_s: tuple[Floats, ...]
    total_s: tuple[float, ...]
    before_bytes: Floats
    total_bytes: float
    limits: tuple[int, ...] | None
    keeping: KeptBlocks | None = None


@dataclass(frozen=True)
class CutPoints:
    """Places where chunks may begin.

    Args:
        names: op at each place, in order.
        before_s, total_s: seconds of one microbatch before each place, and of all ops.
        crossing: bytes that one rank sends over each place.
        at: position of each place's op in the ``program``.
        held: (position of an op, stage that must contain it).
        program: names of all ops.
        pace: of unlike stages.
    """

    names: tuple[str, ...]
    before_s: Floats
    crossing_bytes: Floats
    total_s: float
    at: tuple[int, ...] = ()
    held: tuple[tuple[int, int], ...] = ()
    program: tuple[str, ...] = ()
    stage_profiles: StageProfiles | None = None

    def levels(self, least: int) -> list[float]:
        """Thresholds of crossing bytes, smallest first, each of which admits at least half as many more places.

        The first admits at least ``least`` places, the last as many as ``MAX_PLACES`` allows.
        """
        amounts, counts = np.unique(self.crossing_bytes, return_counts=True)
        offered = np.cumsum(counts)
        usable = np.flatnonzero((offered >= least) & (offered <= MAX_PLACES))
        found: list[int] = []
        for at in usable.tolist():
            if not found or offered[at] >= PLACES_GROWTH * offered[found[-1]] or at == usable[-1]:
                found.append(at)
        return [float(amounts[at]) for at in found]


def find_cut_points(
    graph: LogicalGraph,
    strategy: Strategy,
    seconds: Mapping[str, float],
    starts: frozenset[str] | None = None,
    held: Mapping[str, int] | None = None,
) -> CutPoints:
    """Find the cut points of a strategy.

    Args:
        graph: bound to the microbatch size.
        strategy: layouts on one stage's mesh.
        seconds: of one microbatch, by op; 0 for missing ops.
        starts: ops that a chunk may begin with; None allows any.
        held: stages of ops that the user gave.
    """
    nodes = [node for node in graph.nodes if node.name in graph.parameter_dependent]
    at = {node.name: place for place, node in enumerate(nodes)}
    last: dict[Ref, int] = {graph.loss: len(nodes) - 1}
    for place, node in enumerate(nodes):
        for ref in node.refs():
            if ref.name in at:
                last[ref] = place
    change = np.zeros(len(nodes) + 1)
    for ref, end in last.items():
        # A tensor is alive before each op after its producer, up to its last reader.
        size = local_value_bytes(graph, strategy, ref)
        change[at[ref.name] + 1] += size
        change[end + 1] -= size
    crossing = np.cumsum(change)[: len(nodes)]
    own = np.array([seconds.get(node.name, 0.0) for node in nodes])
    before = np.concatenate([[0.0], np.cumsum(own)])
    chosen = [place for place in range(1, len(nodes)) if starts is None or nodes[place].name in starts]
    stages = tuple((at[name], stage) for name, stage in (held or {}).items())
    names = tuple(nodes[place].name for place in chosen)
    program = tuple(node.name for node in nodes)
    return CutPoints(names, before[chosen], crossing[chosen], float(before[-1]), tuple(chosen), stages, program)


class StagePartitioner:
    """Partitions the same places into different numbers of chunks.

    Args:
        places: where chunks may begin.
        seconds_per_byte: of a message, one way; a chunk adds it once for each of its cuts.
        stages: chunk c belongs to stage c mod this; by default as many as chunks.
    """

    def __init__(self, places: CutPoints, seconds_per_byte: float, stages: int | None = None) -> None:
        self.places, self.seconds_per_byte, self.stages = places, seconds_per_byte, stages
        self._alike = places.stage_profiles is None and not places.held
        self._balances: dict[tuple[float, int], _PartitionProgram] = {}

    def cut(self, num_chunks: int) -> tuple[str, ...] | None:
        """Cuts that minimise the slowest chunk; None with too few places, or if none keeps ops in given stages."""
        places, stages = self.places, self.stages or num_chunks
        levels = places.levels(num_chunks - 1)
        if not levels:
            return None

        def slowest_s(level: float, most_s: float = np.inf) -> float:
            return self._balance(level, num_chunks, stages).slowest_s(num_chunks, most_s)

        # More places never make the slowest chunk slower, so all places give a bound for fewer.
        enough_s = NEAR_EVEN * _even_s(places, num_chunks, stages)
        found = levels[0]
        if slowest_s(found, enough_s) > enough_s:
            most_s = max(slowest_s(levels[-1]), enough_s)
            if most_s == np.inf:
                return None
            found = levels[bisect_left(levels, True, key=lambda level: slowest_s(level, most_s) <= most_s)]
        return tuple(places.names[at] for at in self._balance(found, num_chunks, stages).cuts(num_chunks))

    @property
    def least_stage_s(self) -> float:
        """Lower bound on the slowest stage's seconds of a microbatch, without messages; 0 for unlike stages."""
        places = self.places
        if places.stage_profiles is not None:
            return 0.0
        longest_s = max(
            (_longest_s(places, places.crossing_bytes <= level) for level in places.levels(0)[-1:]), default=0.0
        )
        return max(places.total_s / (self.stages or len(places.names) + 1), longest_s)

    def _balance(self, level: float, num_chunks: int, stages: int) -> _PartitionProgram:
        """Dynamic program over the places that at most ``level`` bytes cross, shared by chunk counts of like stages."""
        key = level, 0 if self._alike else num_chunks
        if key not in self._balances:
            chosen = np.flatnonzero(self.places.crossing_bytes <= level)
            self._balances[key] = _PartitionProgram(
                self.places, chosen, self.seconds_per_byte, stages, stages / num_chunks
            )
        return self._balances[key]


def cut(
    places: CutPoints, num_chunks: int, seconds_per_byte: float, stages: int | None = None
) -> tuple[str, ...] | None:
    """``StagePartitioner.cut`` for one number of chunks."""
    return StagePartitioner(places, seconds_per_byte, stages).cut(num_chunks)


class _PartitionProgram:
    """Dynamic program that minimises the slowest chunk; of equals, the earliest cuts win.

    ``room``: fraction of a stage's memory that a chunk has.
    """

    def __init__(
        self, places: CutPoints, chosen: NDArray[np.int64], seconds_per_byte: float, stages: int, room: float
    ) -> None:
        self.places, self.chosen, self.stages, self.room = places, chosen, stages, room
        self.sends = seconds_per_byte * places.crossing_bytes[chosen]
        self._known: dict[tuple[int, float, int], Floats] = {}
        self._slowest: dict[int, Floats] = {}
        self.longest_s = max(
            _longest_s(places, chosen, stage) for stage in range(stages if places.stage_profiles else 1)
        )

    def slowest_s(self, num_chunks: int, most_s: float = np.inf) -> float:
        """Seconds of the slowest chunk; inf if it would exceed ``most_s``.

        Chunks above a ceiling cannot be part of a better partition, and without them each place has few predecessors.
        The ceiling rises from the time of an even split until there are cuts.
        """
        floor = max(_even_s(self.places, num_chunks, self.stages), self.longest_s)
        for rise in CEILING_FACTORS:
            ceiling = min(floor * rise if floor else np.inf, most_s)
            self._slowest[num_chunks] = self._under(num_chunks, ceiling)
            found = float(self._slowest[num_chunks][-1][-1])
            if found <= ceiling:
                return found
            if ceiling == most_s:
                break
        return np.inf

    def cuts(self, num_chunks: int) -> list[int]:
        """Places of the cuts; call after ``slowest_s``."""
        place, picked = len(self.chosen), []
        for at in range(num_chunks - 1, 0, -1):
            # Predecessors are found only here, on the way back.
            before = np.concatenate([[np.inf], self._slowest[num_chunks][at - 1][:-1]])
            place = int(np.maximum(self._chunks(at % self.stages)[place], before).argmin())
            picked.append(int(self.chosen[place - 1]))
            place -= 1
        return picked[::-1]

    def _under(self, num_chunks: int, ceiling: float) -> Floats:
        """Seconds [chunks, place] of the slowest of 1, 2, ... chunks up to each place, for chunks below the ceiling.

        Entries above the ceiling are some value above it.
        """
        alike = self.places.stage_profiles is None and not self.places.held
        kinds = range(1 if alike else min(self.stages, num_chunks))
        bands = [_band(self._chunks(at), ceiling) for at in kinds]
        return _slowest_chunks_s(bands, self._chunks(0)[:, 0], num_chunks)

    def _chunks(self, stage: int) -> Floats:
        """Seconds [j, i] of a chunk from place i to j; place 0 is the model's start, the last row its end."""
        places, chosen = self.places, self.chosen
        before_s, total_s, limit = stage_profile(places, stage)
        key = (
            id(before_s),
            limit,
            -1 if places.stage_profiles is None or places.stage_profiles.keeping is None else stage,
        )
        if key not in self._known:
            starts = np.concatenate([[0.0], before_s[chosen]])
            ends = np.concatenate([before_s[chosen], [total_s]])
            sent = np.concatenate([[0.0], self.sends])
            chunk = (ends + np.append(self.sends, 0.0))[:, None] - starts + sent
            chunk[~np.tri(len(starts), dtype=bool)] = np.inf
            self._known[key] = _within_memory(places, chosen, chunk, limit * self.room, stage)
        return _with_given_stages(places, chosen, self._known[key], stage)


def _longest_s(places: CutPoints, chosen: NDArray[np.int64] | NDArray[np.bool_], stage: int = 0) -> float:
    """Longest time between two adjacent places: some chunk contains it."""
    before_s, total_s, _ = stage_profile(places, stage)
    return float(np.diff(before_s[chosen], prepend=0.0, append=total_s).max())


def _slowest_chunks_s(bands: Sequence[Floats], first: Floats, num_chunks: int) -> Floats:
    """Seconds [chunks, place] of the slowest of 1, 2, ... chunks up to each place.

    ``first``: one chunk up to each place. ``bands``: the ``_band`` of each kind of stage in turn.
    """
    depth, count = max(map(len, bands)), len(first)
    if LOOPS is not None:
        padded, dealt = np.full((len(bands), depth, count), np.inf), np.empty((num_chunks, count))
        for own, band in zip(padded, bands, strict=True):
            own[: len(band)] = band
        dealt[0] = first
        LOOPS.deal_out(padded, dealt)
        return dealt
    # Row ``at`` ends with the values for ``at + 1`` chunks; ``ago[at, d, j]`` is the value d places before j.
    rows = np.full((num_chunks, depth + count), np.inf)
    rows[0, depth:] = first
    ago = sliding_window_view(rows, count, axis=1)[:, depth - 1 :: -1]
    room = [np.empty_like(band) for band in bands]
    for at in range(1, num_chunks):
        kind = at % len(bands)
        through = np.maximum(bands[kind], ago[at - 1, : len(bands[kind])], out=room[kind])
        through.min(axis=0, out=rows[at, depth:])
    return rows[:, depth:]


def _band(chunk: Floats, ceiling: float) -> Floats:
    """Seconds [d, j] of the chunk from d places before j to j, for all d with a chunk below the ceiling."""
    fits, ends = chunk <= ceiling, np.arange(len(chunk))
    ago = np.arange(1 + int((ends - fits.argmax(axis=1))[fits.any(axis=1)].max(initial=0)))[:, None]
    return np.where(ends < ago, np.inf, chunk[ends, np.maximum(ends - ago, 0)])


def prefix_sums(program: Sequence[str], amounts: Mapping[str, float]) -> Floats:
    """Sums of amounts before each op of the program, and of all."""
    return np.concatenate([[0.0], np.cumsum([amounts.get(name, 0.0) for name in program])])


def stage_profile(places: CutPoints, stage: int) -> tuple[Floats, float, float]:
    """Seconds before each place, total seconds, and memory of a stage."""
    pace = places.stage_profiles
    if pace is None:
        return places.before_s, places.total_s, np.inf
    return pace.before_s[stage], pace.total_s[stage], pace.limits[stage] if pace.limits else np.inf


def _even_s(places: CutPoints, num_chunks: int, stages: int) -> float:
    """Seconds of every chunk if work could be split evenly."""
    pace = places.stage_profiles
    if pace is None:
        return places.total_s / num_chunks
    return 1 / sum(1 / pace.total_s[at % stages] for at in range(num_chunks))


def _within_memory(places: CutPoints, chosen: NDArray[np.int64], chunk: Floats, limit: float, stage: int) -> Floats:
    """Set chunks that exceed the limit to inf; remaining memory keeps blocks, which makes chunks faster."""
    pace = places.stage_profiles
    if pace is None or limit == np.inf:
        return chunk
    taken = _pairwise_amounts(pace.before_bytes, pace.total_bytes, chosen)
    keeping = pace.keeping
    if keeping is not None:
        blocks = _pairwise_amounts(keeping.before_blocks, keeping.total_blocks, chosen)
        again_s = _pairwise_amounts(keeping.again_s, keeping.total_recompute_s, chosen)
        taken = taken + keeping.saved_input_bytes[stage] * blocks
        kept = np.clip(np.floor((limit - taken) / max(keeping.kept_bytes[stage], 1.0)), 0.0, blocks)
        chunk = chunk - again_s * np.divide(kept, blocks, out=np.zeros_like(kept), where=blocks > 0)
    return np.where(taken > limit, np.inf, chunk)


def _pairwise_amounts(before: Floats, total: float, chosen: NDArray[np.int64]) -> Floats:
    """Amount [j, i] between places i and j, from the sums before each place and of all."""
    own = before[chosen]
    found: Floats = np.append(own, total)[:, None] - np.concatenate([[0.0], own])
    return found


def _with_given_stages(places: CutPoints, chosen: NDArray[np.int64], chunk: Floats, stage: int) -> Floats:
    """Chunks of a stage, set to inf if they contain an op given to another stage."""
    others = [at for at, own in places.held if own != stage]
    if not others:
        return chunk
    cuts = np.array(places.at)[chosen]
    starts, ends = np.concatenate([[0], cuts]), np.append(cuts, np.iinfo(np.int64).max)
    contains = np.zeros(chunk.shape, dtype=bool)
    for at in others:
        contains |= (at < ends)[:, None] & (starts <= at)
    return np.where(contains, np.inf, chunk)
