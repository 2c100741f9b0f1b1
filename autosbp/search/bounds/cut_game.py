"""The least that a pipeline's step takes, of all ways to cut a model: a game between critical paths and cuts.

One player picks a path through the passes of a step (``critical_paths``), the other one where the model is cut; the length
of the path is what the first one gains. Of paths in any proportion, the cuts that make their average shortest are found by
dynamic programming over all places, and no step is shorter than that: whatever the cuts are, one of the paths is as long as
the average. Proportions that make it the most are those of the game's solution. Neither player's choices can be listed:
each is told its best answer to the other's proportions, one after another (double oracle: McMahan, Gordon and Blum 2003).

The other player may mix cuts, too, which no pipeline can: where a model is made of few heavy ops, a mixture is far better
than any of its cuts. So the places of one cut are halved where the mixture has them on both sides, each half is a game of
its own, and the least of all that are left is the bound (branch and bound)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count as counter

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.pipeline_passes import BACKWARD, FORWARD, KINDS, WEIGHTS
from autosbp.search.bounds.chunk_work import FORWARD as FORWARD_COLUMN
from autosbp.search.bounds.chunk_work import ONCE, PASSES, PUT_OFF, SHARED, STEP, ChunkWork, Weights
from autosbp.search.bounds.critical_paths import CriticalPaths, Path
from autosbp.search.bounds.matrix_game import mixtures

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
TURNS_A_NODE, TURN_ADDITIONS = 40, 2e6
ROUNDING = 1e-9
MIXED, IDLE = 1e-9, 3
"""Less of a path or a way to cut is rounding; and turns without a part in the solution after which a path is left out."""


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Seconds of one microbatch's messages over each cut, forward and back, at each border within: [cut, border]."""

    ahead_s: Floats
    back_s: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Cut:
    """``borders`` of a way to cut, what each chunk takes, [chunk, column], and its messages ahead and back, [chunk]; the
    last and the first have none."""

    borders: Ints
    seconds: Floats
    ahead_s: Floats
    back_s: Floats


@dataclass(frozen=True, order=True)
class _Node:
    """Ways to cut, from the ``lowest`` to the ``highest`` border of each cut, which take no less than ``bound_s``; and the
    rows and columns of the table that its game begins with."""

    bound_s: float
    turn: int
    lowest: Ints = field(compare=False)
    highest: Ints = field(compare=False)
    rows: tuple[int, ...] = field(default=(), compare=False)
    columns: tuple[int, ...] = field(default=(), compare=False)

    def holds(self, borders: Ints) -> bool:
        return bool(((self.lowest <= borders) & (borders <= self.highest)).all())


@dataclass(frozen=True, slots=True)
class _Played:
    """What a game came to: no way to cut takes less than ``bound_s``, and these ``columns``, so much of each, ``step_s`` on
    average, along these ``rows``; after so many ``turns``."""

    bound_s: float
    step_s: float
    turns: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    mixed: tuple[float, ...]


class CutGame:
    """Of one schedule; ``defers`` where it puts off gradients of weights."""

    def __init__(self, paths: CriticalPaths, work: ChunkWork, messages: Messages, *, defers: bool) -> None:
        self._critical, self._work, self._messages, self._defers = paths, work, messages, defers
        self._stages, self._chunks = paths.pipeline.num_stages, paths.pipeline.num_chunks
        self._paths: list[Path] = []
        self._rows: list[Floats] = []
        self._columns: list[Floats] = []
        self._cuts: list[_Cut] = []
        self._row_of: dict[bytes, int] = {}
        self._column_of: dict[tuple[int, ...], int] = {}
        self._order, self._left, self._shut_s, self._quickest_s = counter(), list[_Node](), np.inf, np.inf
        cuts, inner = self._chunks - 1, work.num_borders - 2
        if inner >= cuts:  # so many chunks can be cut
            first, lowest = self._add_cut(work.even(self._chunks)), np.arange(1, cuts + 1)
            self._left.append(_Node(0.0, next(self._order), lowest, lowest + inner - cuts, columns=(first,)))

    @property
    def additions(self) -> float:
        """Of a turn, by about, what is not of the dynamic program included."""
        return TURN_ADDITIONS + self._chunks * self._work.num_borders**2 / 2

    @property
    def bound_s(self) -> float:
        """No step is shorter; infinite where the model has no place for so many cuts."""
        return min(self._left[0].bound_s if self._left else np.inf, self._shut_s)

    @property
    def is_open(self) -> bool:
        """Whether it may be raised: it is below what the quickest known way to cut takes, by the same least works."""
        return self.bound_s < self._quickest_s * (1 - ROUNDING)

    def raise_bound(self, level: float, turns: int, overdue: Callable[[], bool]) -> int:
        """Look at what is left below a level, for so many turns, or until time is over. Returns how many were taken. What was
        proved for one level is not proved for a higher one."""
        taken = 0
        while self._left and self.is_open and self.bound_s < level and taken < turns and not overdue():
            node = heapq.heappop(self._left)
            asked = min(level, self._quickest_s * (1 - ROUNDING))
            played = self._played(node, asked, overdue)
            taken += played.turns
            if played.bound_s >= asked:
                self._shut_s = min(self._shut_s, played.bound_s)
                continue
            if played.step_s < asked and len(played.columns) == 1:  # more than that cannot be proved
                self._quickest_s = played.step_s
                heapq.heappush(self._left, replace(node, bound_s=played.bound_s, rows=played.rows))
                continue
            halves = self._halves(node, played)
            if not halves:  # one way to cut is left of it, or time is over
                self._quickest_s = min(self._quickest_s, played.bound_s if played.columns else np.inf)
                heapq.heappush(self._left, replace(node, bound_s=played.bound_s))
            for lowest, highest in halves:
                part = _Node(played.bound_s, next(self._order), lowest, highest, played.rows)
                columns = tuple(at for at in played.columns if part.holds(self._cuts[at].borders))
                heapq.heappush(self._left, replace(part, columns=columns))
        return taken

    def _played(self, node: _Node, level: float, overdue: Callable[[], bool]) -> _Played:
        """The game over a node's ways to cut, as far as its bound is raised, and as long as it may still reach the
        level."""
        bound, step_s = node.bound_s, np.inf
        rows, columns = list(node.rows), list(node.columns)
        used = dict.fromkeys(rows, 0)  # by row, the last turn in which it had a part
        known, turns = len(rows), 0
        while turns < TURNS_A_NODE:
            turns += 1
            rows = [row for row in rows if turns - used[row] <= IDLE]
            weights, mixed = self._solved(rows, columns)
            used.update((row, turns) for row, weight in zip(rows, weights.tolist(), strict=True) if weight > MIXED)
            least, cuts = self._answered(*self._average(rows, weights), node)
            bound = max(bound, least * (1 - ROUNDING))
            if bound >= level or overdue():
                break
            known = len(rows)
            if columns:
                step_s, paths = self._longest(mixed, columns)
                rows += [at for at in dict.fromkeys(map(self._add_path, paths)) if at not in rows]
                used.update(dict.fromkeys(rows[known:], turns))
                if step_s < level:  # no proportions of paths say more than that
                    break
            at = self._add_cut(cuts)
            if at not in columns:
                columns.append(at)
            elif known == len(rows):
                break
        last = tuple(row for row in rows if used[row] == turns)
        chosen = [(at, weight) for at, weight in zip(columns, mixed.tolist(), strict=False) if weight > MIXED]
        kept = tuple(each for each, _ in chosen), tuple(weight for _, weight in chosen)
        return _Played(bound, step_s, turns, last, *kept)

    def _solved(self, rows: Sequence[int], columns: Sequence[int]) -> tuple[Floats, Floats]:
        """The parts of paths and of cuts that the table's game has; alike where one player has none to choose from."""
        if rows and columns:
            lengths = np.stack([self._rows[at] for at in rows]) @ np.stack([self._columns[at] for at in columns]).T
            return mixtures(lengths)
        return np.full(len(rows), 1 / max(len(rows), 1)), np.full(len(columns), 1 / max(len(columns), 1))

    def _average(self, rows: Sequence[int], weights: Floats) -> tuple[Floats, Floats]:
        """How often passes are gone through, by kind and chunk, and the parts of paths that end at each stage; without
        paths as if each stage waited for nothing."""
        if not rows:
            often = np.full((len(KINDS), self._chunks), self._work.count / self._stages)
            return often, np.full(self._stages, 1 / self._stages)
        paths = [self._paths[at] for at in rows]
        often = np.tensordot(weights, [path.often for path in paths], axes=1)
        return often, np.bincount([path.stage for path in paths], weights, self._stages).astype(np.float64)

    def _halves(self, node: _Node, played: _Played) -> list[tuple[Ints, Ints]]:
        """Two parts of a node's ways to cut, by the cut that the mixture agrees least about; none where that is one way to
        cut, and quicker than the level, or all that is left."""
        if not played.columns:
            return []
        borders, weights = np.array([self._cuts[at].borders for at in played.columns]), np.array(played.mixed)
        means = weights @ borders / weights.sum()
        spread = weights @ np.abs(borders - means)
        cut, room = int(spread.argmax()), node.highest - node.lowest
        if spread[cut] == 0:
            cut = int(room.argmax())
            if not room[cut]:
                return []
        middle = min(max(int(means[cut]), int(node.lowest[cut])), int(node.highest[cut]) - 1)
        found = []
        for low, high in ((node.lowest[cut], middle), (middle + 1, node.highest[cut])):
            lowest, highest, steps = node.lowest.copy(), node.highest.copy(), np.arange(len(room))
            lowest[cut], highest[cut] = low, high
            lowest = np.maximum.accumulate(lowest - steps) + steps
            highest = np.minimum.accumulate((highest - steps)[::-1])[::-1] + steps
            if (lowest <= highest).all():
                found.append((lowest, highest))
        return found

    def _answered(self, often: Floats, ends: Floats, node: _Node) -> tuple[float, list[int]]:
        """The cuts of a node at which such passes take least, and what that is."""
        prices = often[0, :-1, None] * self._messages.ahead_s + often[1, 1:, None] * self._messages.back_s
        return self._work.least(self._weights(often, ends), prices, node.lowest, node.highest)

    def _weights(self, often: Floats, ends: Floats) -> Weights:
        forward, backward, late = often
        once = ends[np.arange(self._chunks) % self._stages]
        return Weights(forward, backward, late if self._defers else backward, once)

    def _add_path(self, path: Path) -> int:
        """A row of the game's table: which it is."""
        key = path.often.tobytes() + path.stage.to_bytes(4, "little")
        if key not in self._row_of:
            self._row_of[key] = len(self._paths)
            ends = np.zeros(self._stages)
            ends[path.stage] = 1.0
            weighted = self._work.weighted(self._weights(path.often, ends))
            self._paths.append(path)
            self._rows.append(np.concatenate([weighted.ravel(), path.often[0], path.often[1]]))
        return self._row_of[key]

    def _add_cut(self, cuts: Sequence[int]) -> int:
        """A column: which it is."""
        key = tuple(cuts)
        if key not in self._column_of:
            self._column_of[key] = len(self._cuts)
            borders, at = np.array(cuts, dtype=np.int64), np.arange(len(cuts))
            ahead_s, back_s = np.zeros(self._chunks), np.zeros(self._chunks)
            ahead_s[:-1] = self._messages.ahead_s[at, borders - 1]
            back_s[1:] = self._messages.back_s[at, borders - 1]
            cut = _Cut(borders, self._work.of_chunks(cuts), ahead_s, back_s)
            self._cuts.append(cut)
            self._columns.append(np.concatenate([cut.seconds.ravel(), ahead_s, back_s]))
        return self._column_of[key]

    def _longest(self, mixed: Floats, columns: Sequence[int]) -> tuple[float, list[Path]]:
        """Of chunks that take what these cuts have on average."""
        cuts = [self._cuts[at] for at in columns]
        seconds = np.tensordot(mixed, [cut.seconds for cut in cuts], axes=1)
        ahead_s = np.tensordot(mixed, [cut.ahead_s for cut in cuts], axes=1)
        back_s = np.tensordot(mixed, [cut.back_s for cut in cuts], axes=1)
        once_s, forward_s = seconds[:, ONCE] + seconds[:, SHARED], seconds[:, FORWARD_COLUMN]
        passes_s = np.maximum(seconds[:, PASSES], (seconds[:, STEP] - once_s) / self._work.count)
        late_s = seconds[:, PUT_OFF] if self._defers else np.zeros(self._chunks)
        own_s, sends_s = np.zeros((len(KINDS), self._chunks)), np.zeros((len(KINDS), self._chunks))
        forward, backward, weights = (KINDS.index(kind) for kind in (FORWARD, BACKWARD, WEIGHTS))
        own_s[forward], own_s[backward], own_s[weights] = forward_s, passes_s - forward_s - late_s, late_s
        sends_s[forward], sends_s[backward] = ahead_s, back_s
        return self._critical.longest(own_s, sends_s, once_s.reshape(-1, self._stages).sum(axis=0))
