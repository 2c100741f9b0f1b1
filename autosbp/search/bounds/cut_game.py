"""Lower bound on a pipeline's step time over all ways to cut a model: a game between critical paths and cuts.

One player picks a path through the passes of a step (``critical_paths``), the other picks where the model is cut; the
first player gains the path's length. For any mixture of paths, dynamic programming over all places finds the cuts with
the shortest average path. No step is shorter than that: whatever the cuts are, one of the paths is as long as the
average. The game's solution is the mixture with the largest bound. Neither player's choices can be listed, so each
answers the other's mixture with its best choice in turn (double oracle: McMahan, Gordon and Blum 2003).

The cutting player may mix cuts, which no pipeline can. If a model has few heavy ops, a mixture is far better than any
single cut. So branch and bound splits the range of one cut where the mixture has it on both sides. Each half is a game
of its own, and the bound is the least over all halves left."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count as counter

import numpy as np
from numpy.typing import NDArray

from autosbp.schedules.passes import BACKWARD, FORWARD, KINDS, WGRAD
from autosbp.search.bounds.chunk_weights import (
    DEFERRED_WGRAD,
    GATHERED_PARAMETERS,
    ONCE_PER_STEP,
    PASSES,
    STEP,
    ChunkPassWeights,
    ChunkWorkItems,
)
from autosbp.search.bounds.chunk_weights import FORWARD as FORWARD_COLUMN
from autosbp.search.bounds.critical_paths import CriticalPath, CriticalPaths
from autosbp.search.bounds.matrix_game import optimal_mixed_strategies

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MAX_TURNS_PER_NODE, FIXED_ADDITIONS_PER_TURN = 40, 2e6
ROUNDING = 1e-9
MIN_PROBABILITY, MAX_IDLE_TURNS = 1e-9, 3
"""Least probability of a path or a cut, below which it counts as rounding; and idle turns after which a path is dropped."""


@dataclass(frozen=True, slots=True, eq=False)
class CutMessages:
    """Seconds of one microbatch's messages over each cut, forward and backward, [cut, inner border]."""

    ahead_s: Floats
    back_s: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Cut:
    """One way to cut: its borders, seconds [chunk, column], and messages forward and backward [chunk].

    The last chunk sends nothing forward and the first one nothing backward."""

    borders: Ints
    seconds: Floats
    ahead_s: Floats
    back_s: Floats


@dataclass(frozen=True, order=True)
class _Node:
    """Ways to cut with each cut between its ``lowest`` and ``highest`` border, which take at least ``bound_s``.

    ``rows`` and ``columns`` are the entries of the table that its game begins with."""

    bound_s: float
    turn: int
    lowest: Ints = field(compare=False)
    highest: Ints = field(compare=False)
    rows: tuple[int, ...] = field(default=(), compare=False)
    columns: tuple[int, ...] = field(default=(), compare=False)

    def contains(self, borders: Ints) -> bool:
        return bool(((self.lowest <= borders) & (borders <= self.highest)).all())


@dataclass(frozen=True, slots=True)
class _GameResult:
    """Result of a game: no way to cut takes less than ``bound_s``.

    The ``columns``, mixed in proportions ``mixed``, take ``step_s`` on average along the paths ``rows``, after
    ``turns`` turns."""

    bound_s: float
    step_s: float
    turns: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    mixed: tuple[float, ...]


class CutGame:
    """The game of one schedule; ``defers`` if the schedule defers weight gradients."""

    def __init__(self, paths: CriticalPaths, work: ChunkWorkItems, messages: CutMessages, *, defers: bool) -> None:
        self._critical, self._chunk_weights, self._messages, self._defers = paths, work, messages, defers
        self._stages, self._chunks = paths.pipeline.num_stages, paths.pipeline.num_chunks
        self._paths: list[CriticalPath] = []
        self._rows: list[Floats] = []
        self._columns: list[Floats] = []
        self._cuts: list[_Cut] = []
        self._row_of: dict[bytes, int] = {}
        self._column_of: dict[tuple[int, ...], int] = {}
        self._order, self._open_nodes, self._closed_bound_s, self._best_step_s = (
            counter(),
            list[_Node](),
            np.inf,
            np.inf,
        )
        cuts, inner = self._chunks - 1, work.num_borders - 2
        if inner >= cuts:  # the model has enough borders
            first, lowest = self._add_cut(work.even(self._chunks)), np.arange(1, cuts + 1)
            self._open_nodes.append(_Node(0.0, next(self._order), lowest, lowest + inner - cuts, columns=(first,)))

    @property
    def additions(self) -> float:
        """Approximate additions of a turn, including work outside the dynamic program."""
        return FIXED_ADDITIONS_PER_TURN + self._chunks * self._chunk_weights.num_borders**2 / 2

    @property
    def bound_s(self) -> float:
        """No step is shorter; infinite if the model has too few places for the cuts."""
        return min(self._open_nodes[0].bound_s if self._open_nodes else np.inf, self._closed_bound_s)

    @property
    def is_open(self) -> bool:
        """Whether the bound can rise: it is below the step time of the fastest known cuts under the same least work."""
        return self.bound_s < self._best_step_s * (1 - ROUNDING)

    def raise_bound(self, level: float, turns: int, overdue: Callable[[], bool]) -> int:
        """Refine the nodes below ``level`` for ``turns`` turns, or until ``overdue()``. Returns the turns taken.

        A proof for one level does not hold for a higher one."""
        taken = 0
        while self._open_nodes and self.is_open and self.bound_s < level and taken < turns and not overdue():
            node = heapq.heappop(self._open_nodes)
            asked = min(level, self._best_step_s * (1 - ROUNDING))
            played = self._play(node, asked, overdue)
            taken += played.turns
            if played.bound_s >= asked:
                self._closed_bound_s = min(self._closed_bound_s, played.bound_s)
                continue
            if played.step_s < asked and len(played.columns) == 1:  # nothing higher can be proved
                self._best_step_s = played.step_s
                heapq.heappush(self._open_nodes, replace(node, bound_s=played.bound_s, rows=played.rows))
                continue
            halves = self._split_node(node, played)
            if not halves:  # the node has a single way to cut, or the time is up
                self._best_step_s = min(self._best_step_s, played.bound_s if played.columns else np.inf)
                heapq.heappush(self._open_nodes, replace(node, bound_s=played.bound_s))
            for lowest, highest in halves:
                part = _Node(played.bound_s, next(self._order), lowest, highest, played.rows)
                columns = tuple(at for at in played.columns if part.contains(self._cuts[at].borders))
                heapq.heappush(self._open_nodes, replace(part, columns=columns))
        return taken

    def _play(self, node: _Node, level: float, overdue: Callable[[], bool]) -> _GameResult:
        """Play the game over a node's cuts while its bound rises and may still reach the level."""
        bound, step_s = node.bound_s, np.inf
        rows, columns = list(node.rows), list(node.columns)
        used = dict.fromkeys(rows, 0)  # last turn in which each row had a part in the solution
        known, turns = len(rows), 0
        while turns < MAX_TURNS_PER_NODE:
            turns += 1
            rows = [row for row in rows if turns - used[row] <= MAX_IDLE_TURNS]
            weights, mixed = self._solve_table(rows, columns)
            used.update(
                (row, turns) for row, weight in zip(rows, weights.tolist(), strict=True) if weight > MIN_PROBABILITY
            )
            least, cuts = self._best_cuts(*self._mean_path(rows, weights), node)
            bound = max(bound, least * (1 - ROUNDING))
            if bound >= level or overdue():
                break
            known = len(rows)
            if columns:
                step_s, paths = self._longest(mixed, columns)
                rows += [at for at in dict.fromkeys(map(self._add_path, paths)) if at not in rows]
                used.update(dict.fromkeys(rows[known:], turns))
                if step_s < level:  # no mixture of paths gives a higher bound
                    break
            at = self._add_cut(cuts)
            if at not in columns:
                columns.append(at)
            elif known == len(rows):
                break
        last = tuple(row for row in rows if used[row] == turns)
        chosen = [(at, weight) for at, weight in zip(columns, mixed.tolist(), strict=False) if weight > MIN_PROBABILITY]
        kept = tuple(each for each, _ in chosen), tuple(weight for _, weight in chosen)
        return _GameResult(bound, step_s, turns, last, *kept)

    def _solve_table(self, rows: Sequence[int], columns: Sequence[int]) -> tuple[Floats, Floats]:
        """Optimal probabilities of paths and cuts of the table; uniform if one player has no choices."""
        if rows and columns:
            lengths = np.stack([self._rows[at] for at in rows]) @ np.stack([self._columns[at] for at in columns]).T
            return optimal_mixed_strategies(lengths)
        return np.full(len(rows), 1 / max(len(rows), 1)), np.full(len(columns), 1 / max(len(columns), 1))

    def _mean_path(self, rows: Sequence[int], weights: Floats) -> tuple[Floats, Floats]:
        """[kind, chunk] average passes of a mixture of paths, and [stage] the probability that a path ends there.

        Without paths, the average of stages that wait for nothing."""
        if not rows:
            often = np.full((len(KINDS), self._chunks), self._chunk_weights.count / self._stages)
            return often, np.full(self._stages, 1 / self._stages)
        paths = [self._paths[at] for at in rows]
        often = np.tensordot(weights, [path.often for path in paths], axes=1)
        return often, np.bincount([path.stage for path in paths], weights, self._stages).astype(np.float64)

    def _split_node(self, node: _Node, played: _GameResult) -> list[tuple[Ints, Ints]]:
        """Split a node at the cut on which the mixture agrees least; empty if it cannot be split."""
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

    def _best_cuts(self, often: Floats, ends: Floats, node: _Node) -> tuple[float, list[int]]:
        """The best cuts of a node for these pass counts, with their seconds."""
        prices = often[0, :-1, None] * self._messages.ahead_s + often[1, 1:, None] * self._messages.back_s
        return self._chunk_weights.least(self._weights(often, ends), prices, node.lowest, node.highest)

    def _weights(self, often: Floats, ends: Floats) -> ChunkPassWeights:
        forward, backward, late = often
        once = ends[np.arange(self._chunks) % self._stages]
        return ChunkPassWeights(forward, backward, late if self._defers else backward, once)

    def _add_path(self, path: CriticalPath) -> int:
        """Index of a path's row in the game's table, added if new."""
        key = path.often.tobytes() + path.stage.to_bytes(4, "little")
        if key not in self._row_of:
            self._row_of[key] = len(self._paths)
            ends = np.zeros(self._stages)
            ends[path.stage] = 1.0
            weighted = self._chunk_weights.weighted(self._weights(path.often, ends))
            self._paths.append(path)
            self._rows.append(np.concatenate([weighted.ravel(), path.often[0], path.often[1]]))
        return self._row_of[key]

    def _add_cut(self, cuts: Sequence[int]) -> int:
        """Index of a way to cut as a column of the table, added if new."""
        key = tuple(cuts)
        if key not in self._column_of:
            self._column_of[key] = len(self._cuts)
            borders, at = np.array(cuts, dtype=np.int64), np.arange(len(cuts))
            ahead_s, back_s = np.zeros(self._chunks), np.zeros(self._chunks)
            ahead_s[:-1] = self._messages.ahead_s[at, borders - 1]
            back_s[1:] = self._messages.back_s[at, borders - 1]
            cut = _Cut(borders, self._chunk_weights.of_chunks(cuts), ahead_s, back_s)
            self._cuts.append(cut)
            self._columns.append(np.concatenate([cut.seconds.ravel(), ahead_s, back_s]))
        return self._column_of[key]

    def _longest(self, mixed: Floats, columns: Sequence[int]) -> tuple[float, list[CriticalPath]]:
        """Longest paths for chunks with the average costs of these cuts."""
        cuts = [self._cuts[at] for at in columns]
        seconds = np.tensordot(mixed, [cut.seconds for cut in cuts], axes=1)
        ahead_s = np.tensordot(mixed, [cut.ahead_s for cut in cuts], axes=1)
        back_s = np.tensordot(mixed, [cut.back_s for cut in cuts], axes=1)
        once_s, forward_s = seconds[:, ONCE_PER_STEP] + seconds[:, GATHERED_PARAMETERS], seconds[:, FORWARD_COLUMN]
        passes_s = np.maximum(seconds[:, PASSES], (seconds[:, STEP] - once_s) / self._chunk_weights.count)
        late_s = seconds[:, DEFERRED_WGRAD] if self._defers else np.zeros(self._chunks)
        own_s, sends_s = np.zeros((len(KINDS), self._chunks)), np.zeros((len(KINDS), self._chunks))
        forward, backward, weights = (KINDS.index(kind) for kind in (FORWARD, BACKWARD, WGRAD))
        own_s[forward], own_s[backward], own_s[weights] = forward_s, passes_s - forward_s - late_s, late_s
        sends_s[forward], sends_s[backward] = ahead_s, back_s
        return self._critical.longest(own_s, sends_s, once_s.reshape(-1, self._stages).sum(axis=0))
