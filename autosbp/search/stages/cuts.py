"""Where a pipeline cuts a model: chunks whose slowest is as quick as can be, messages between them included.

Exact by dynamic programming over the places where the least crosses (after each block of a transformer, one activation);
places where more crosses are taken in only as long as the slowest chunk gets quicker by that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from autosbp.costmodel.stages import sent_bytes
from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.native import LOOPS
from autosbp.plan import Strategy

Floats = NDArray[np.float64]
MAX_PLACES, MORE = 512, 1.5
ENOUGH = 1.02
"""A slowest chunk this near to an equal share is not improved by more places."""
RISES = (1.05, 1.25, 1.6, 2.5, 5.0, np.inf)
"""Times what chunks take at about the least: where cuts are looked for, one after another."""


@dataclass(frozen=True)
class Keeping:
    """Of stages that keep as many blocks as they have room for, and recompute the others: blocks before each place, and all;
    what recomputing the ops before each place takes, and all; bytes that a block takes in each stage, in all microbatches in
    flight, where it is kept and where it is not."""

    before_blocks: Floats
    total_blocks: float
    again_s: Floats
    total_again_s: float
    kept_bytes: tuple[float, ...]
    handed_bytes: tuple[float, ...]


@dataclass(frozen=True)
class Pace:
    """Of stages that are not alike: what each of them would spend on the ops before each place, and on all, of one
    microbatch, recomputation included; the bytes that these ops take in a stage, and what each stage has room for, where that
    matters. With ``keeping``, blocks for which there is room are not recomputed."""

    before_s: tuple[Floats, ...]
    total_s: tuple[float, ...]
    before_bytes: Floats
    total_bytes: float
    limits: tuple[int, ...] | None
    keeping: Keeping | None = None


@dataclass(frozen=True)
class Places:
    """``names[i]`` are the ops that a chunk may begin with, in order; ``before_s[i]`` is what runs before it of one
    microbatch, ``total_s`` all; ``crossing[i]`` are the bytes that one rank sends on there. ``at[i]`` is the
    op's position in the ``program``; ``held`` are positions of ops, and the stages that these must be in. Stages may have a
    ``pace``."""

    names: tuple[str, ...]
    before_s: Floats
    crossing: Floats
    total_s: float
    at: tuple[int, ...] = ()
    held: tuple[tuple[int, int], ...] = ()
    program: tuple[str, ...] = ()
    pace: Pace | None = None

    def levels(self, least: int) -> list[float]:
        """Amounts of crossing bytes, least first, each of which offers half as many places again, ``least`` at least; the last
        one as many as ``MAX_PLACES`` admits."""
        amounts, counts = np.unique(self.crossing, return_counts=True)
        offered = np.cumsum(counts)
        usable = np.flatnonzero((offered >= least) & (offered <= MAX_PLACES))
        found: list[int] = []
        for at in usable.tolist():
            if not found or offered[at] >= MORE * offered[found[-1]] or at == usable[-1]:
                found.append(at)
        return [float(amounts[at]) for at in found]


def find_places(
    graph: LogicalGraph,
    strategy: Strategy,
    seconds: Mapping[str, float],
    starts: frozenset[str] | None = None,
    held: Mapping[str, int] | None = None,
) -> Places:
    """``seconds`` are those of one microbatch by op; ops that it lacks take none. ``graph`` is bound. A chunk may begin with
    any op, or with those in ``starts``. ``held`` are stages of ops."""
    nodes = [node for node in graph.nodes if node.name in graph.computed]
    at = {node.name: place for place, node in enumerate(nodes)}
    last: dict[Ref, int] = {graph.loss: len(nodes) - 1}
    for place, node in enumerate(nodes):
        for ref in node.refs():
            if ref.name in at:
                last[ref] = place
    change = np.zeros(len(nodes) + 1)
    for ref, end in last.items():
        # Made at its op, alive before each op behind that up to its last reader.
        size = sent_bytes(graph, strategy, ref)
        change[at[ref.name] + 1] += size
        change[end + 1] -= size
    crossing = np.cumsum(change)[: len(nodes)]
    own = np.array([seconds.get(node.name, 0.0) for node in nodes])
    before = np.concatenate([[0.0], np.cumsum(own)])
    chosen = [place for place in range(1, len(nodes)) if starts is None or nodes[place].name in starts]
    stages = tuple((at[name], stage) for name, stage in (held or {}).items())
    names = tuple(nodes[place].name for place in chosen)
    program = tuple(node.name for node in nodes)
    return Places(names, before[chosen], crossing[chosen], float(before[-1]), tuple(chosen), stages, program)


class Cutter:
    """Cuts of the same places into different numbers of chunks.

    Args:
        places: where chunks may begin.
        seconds_per_byte: what a message takes, twice at each end, forward and back.
        stages: chunk c is of stage c mod these; as many as chunks if not said.
    """

    def __init__(self, places: Places, seconds_per_byte: float, stages: int | None = None) -> None:
        self.places, self.seconds_per_byte, self.stages = places, seconds_per_byte, stages
        self._alike = places.pace is None and not places.held
        self._balances: dict[tuple[float, int], _Balance] = {}

    def cut(self, num_chunks: int) -> tuple[str, ...] | None:
        """The cuts of the chunks whose slowest takes least; None where there are fewer places than that, or none hold ops
        to their stages."""
        places, stages = self.places, self.stages or num_chunks
        levels = places.levels(num_chunks - 1)
        if not levels:
            return None

        def slowest_s(level: float, most_s: float = np.inf) -> float:
            return self._balance(level, num_chunks, stages).slowest_s(num_chunks, most_s)

        # More places make the slowest chunk no slower, so that all of them tell what it comes to with fewer.
        enough_s = ENOUGH * _even_s(places, num_chunks, stages)
        found = levels[0]
        if slowest_s(found, enough_s) > enough_s:
            most_s = max(slowest_s(levels[-1]), enough_s)
            if most_s == np.inf:
                return None
            found = levels[bisect_left(levels, True, key=lambda level: slowest_s(level, most_s) <= most_s)]
        return tuple(places.names[at] for at in self._balance(found, num_chunks, stages).cuts(num_chunks))

    @property
    def least_stage_s(self) -> float:
        """What the slowest stage takes at the least for its part of a microbatch, messages aside; nothing is known of stages
        with a pace."""
        places = self.places
        if places.pace is not None:
            return 0.0
        longest_s = max((_longest_s(places, places.crossing <= level) for level in places.levels(0)[-1:]), default=0.0)
        return max(places.total_s / (self.stages or len(places.names) + 1), longest_s)

    def _balance(self, level: float, num_chunks: int, stages: int) -> _Balance:
        """Of the places where no more bytes than this cross. What more chunks of like stages go through holds fewer, too."""
        key = level, 0 if self._alike else num_chunks
        if key not in self._balances:
            chosen = np.flatnonzero(self.places.crossing <= level)
            self._balances[key] = _Balance(self.places, chosen, self.seconds_per_byte, stages, stages / num_chunks)
        return self._balances[key]


def cut(places: Places, num_chunks: int, seconds_per_byte: float, stages: int | None = None) -> tuple[str, ...] | None:
    """``Cutter.cut`` of one number of chunks."""
    return Cutter(places, seconds_per_byte, stages).cut(num_chunks)


class _Balance:
    """The least slowest chunk, by dynamic programming; of equals, the one with the earliest cuts. ``room`` is the part of a
    stage's that a chunk has."""

    def __init__(
        self, places: Places, chosen: NDArray[np.int64], seconds_per_byte: float, stages: int, room: float
    ) -> None:
        self.places, self.chosen, self.stages, self.room = places, chosen, stages, room
        self.sends = seconds_per_byte * places.crossing[chosen]
        self._known: dict[tuple[int, float, int], Floats] = {}
        self._slowest: dict[int, Floats] = {}
        self.longest_s = max(_longest_s(places, chosen, stage) for stage in range(stages if places.pace else 1))

    def slowest_s(self, num_chunks: int, most_s: float = np.inf) -> float:
        """Of so many chunks the slowest; infinite where it would take more than ``most_s``.

        Chunks above a ceiling are in no cuts whose slowest is below it, and leave each place few to come from: the ceiling
        rises, from what chunks would take could work be dealt out in any parts, until there are cuts.
        """
        floor = max(_even_s(self.places, num_chunks, self.stages), self.longest_s)
        for rise in RISES:
            ceiling = min(floor * rise if floor else np.inf, most_s)
            self._slowest[num_chunks] = self._under(num_chunks, ceiling)
            found = float(self._slowest[num_chunks][-1][-1])
            if found <= ceiling:
                return found
            if ceiling == most_s:
                break
        return np.inf

    def cuts(self, num_chunks: int) -> list[int]:
        """The places of the cuts, once ``slowest_s`` was asked for."""
        place, picked = len(self.chosen), []
        for at in range(num_chunks - 1, 0, -1):
            # Which place it came from is asked on the way back alone.
            before = np.concatenate([[np.inf], self._slowest[num_chunks][at - 1][:-1]])
            place = int(np.maximum(self._chunks(at % self.stages)[place], before).argmin())
            picked.append(int(self.chosen[place - 1]))
            place -= 1
        return picked[::-1]

    def _under(self, num_chunks: int, ceiling: float) -> Floats:
        """The slowest of 1, 2, ... chunks up to each place, of chunks that take no more than the ceiling; of what is above it
        some amount above it."""
        alike = self.places.pace is None and not self.places.held
        kinds = range(1 if alike else min(self.stages, num_chunks))
        bands = [_band(self._chunks(at), ceiling) for at in kinds]
        return _dealt(bands, self._chunks(0)[:, 0], num_chunks)

    def _chunks(self, stage: int) -> Floats:
        """``[j, i]``: up to place j from place i; place 0 is the model's begin, the last end its end."""
        places, chosen = self.places, self.chosen
        before_s, total_s, limit = pace_of(places, stage)
        key = (id(before_s), limit, -1 if places.pace is None or places.pace.keeping is None else stage)
        if key not in self._known:
            starts = np.concatenate([[0.0], before_s[chosen]])
            ends = np.concatenate([before_s[chosen], [total_s]])
            sent = np.concatenate([[0.0], self.sends])
            chunk = (ends + np.append(self.sends, 0.0))[:, None] - starts + sent
            chunk[~np.tri(len(starts), dtype=bool)] = np.inf
            self._known[key] = _fitting(places, chosen, chunk, limit * self.room, stage)
        return _held_chunks(places, chosen, self._known[key], stage)


def _longest_s(places: Places, chosen: NDArray[np.int64] | NDArray[np.bool_], stage: int = 0) -> float:
    """The most that a stage takes between two of these places with none between them: some chunk has it."""
    before_s, total_s, _ = pace_of(places, stage)
    return float(np.diff(before_s[chosen], prepend=0.0, append=total_s).max())


def _dealt(bands: Sequence[Floats], first: Floats, num_chunks: int) -> Floats:
    """The slowest of 1, 2, ... chunks up to each place, given the ``first`` and, of those of each kind in turn, ``_band``."""
    depth, count = max(map(len, bands)), len(first)
    if LOOPS is not None:
        padded, dealt = np.full((len(bands), depth, count), np.inf), np.empty((num_chunks, count))
        for own, band in zip(padded, bands, strict=True):
            own[: len(band)] = band
        dealt[0] = first
        LOOPS.deal_out(padded, dealt)
        return dealt
    # Of row ``at`` the last ones are what ``at + 1`` chunks come to; ``ago[at, d, j]`` are those of d places before.
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
    """``[d, j]``: the chunk up to place j from d places before; of as many d as there are with one that takes no more than the
    ceiling."""
    fits, ends = chunk <= ceiling, np.arange(len(chunk))
    ago = np.arange(1 + int((ends - fits.argmax(axis=1))[fits.any(axis=1)].max(initial=0)))[:, None]
    return np.where(ends < ago, np.inf, chunk[ends, np.maximum(ends - ago, 0)])


def sums_before(program: Sequence[str], amounts: Mapping[str, float]) -> Floats:
    """What ops have together before each of the program, and all of them."""
    return np.concatenate([[0.0], np.cumsum([amounts.get(name, 0.0) for name in program])])


def pace_of(places: Places, stage: int) -> tuple[Floats, float, float]:
    """Seconds before each place and of all, and room, of a stage."""
    pace = places.pace
    if pace is None:
        return places.before_s, places.total_s, np.inf
    return pace.before_s[stage], pace.total_s[stage], pace.limits[stage] if pace.limits else np.inf


def _even_s(places: Places, num_chunks: int, stages: int) -> float:
    """What every chunk would take, could work be dealt out in any parts."""
    pace = places.pace
    if pace is None:
        return places.total_s / num_chunks
    return 1 / sum(1 / pace.total_s[at % stages] for at in range(num_chunks))


def _fitting(places: Places, chosen: NDArray[np.int64], chunk: Floats, limit: float, stage: int) -> Floats:
    """Chunks that take more bytes than this are infinite; with what is kept in the room that others leave they are quicker."""
    pace = places.pace
    if pace is None or limit == np.inf:
        return chunk
    taken = _between(pace.before_bytes, pace.total_bytes, chosen)
    keeping = pace.keeping
    if keeping is not None:
        blocks = _between(keeping.before_blocks, keeping.total_blocks, chosen)
        again_s = _between(keeping.again_s, keeping.total_again_s, chosen)
        taken = taken + keeping.handed_bytes[stage] * blocks
        kept = np.clip(np.floor((limit - taken) / max(keeping.kept_bytes[stage], 1.0)), 0.0, blocks)
        chunk = chunk - again_s * np.divide(kept, blocks, out=np.zeros_like(kept), where=blocks > 0)
    return np.where(taken > limit, np.inf, chunk)


def _between(before: Floats, total: float, chosen: NDArray[np.int64]) -> Floats:
    """``[j, i]``: up to place j from place i of what is before each of them, and of all."""
    own = before[chosen]
    found: Floats = np.append(own, total)[:, None] - np.concatenate([[0.0], own])
    return found


def _held_chunks(places: Places, chosen: NDArray[np.int64], chunk: Floats, stage: int) -> Floats:
    """Chunks of a stage: infinite where they contain an op that is held to another."""
    others = [at for at, own in places.held if own != stage]
    if not others:
        return chunk
    cuts = np.array(places.at)[chosen]
    starts, ends = np.concatenate([[0], cuts]), np.append(cuts, np.iinfo(np.int64).max)
    contains = np.zeros(chunk.shape, dtype=bool)
    for at in others:
        contains |= (at < ends)[:, None] & (starts <= at)
    return np.where(contains, np.inf, chunk)
