"""Detects runs of equal blocks in a problem, such as a model's layers, by shared arrays.

Variables of a run come block after block. Each has the same arrays, and edges to the same places with the same tables,
as its counterpart in the next block. Blocks are connected through one variable, the *joint*."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autosbp.search._base import SearchProblem
from autosbp.utils.periodic_runs import Keys, PeriodicRun, key_ids, periodic_runs

MIN_VARIABLES = 48
"""Shortest run worth detecting; solving a shorter one takes less time."""


@dataclass(frozen=True, slots=True)
class ProblemRepetition:
    """``count`` blocks of ``period`` variables from ``start`` on; ``joint`` is the index of the joint in a block."""

    start: int
    period: int
    count: int
    joint: int

    def variable(self, block: int, place: int) -> int:
        return self.start + block * self.period + place

    @property
    def end(self) -> int:
        return self.start + self.count * self.period


def find_repeats(problem: SearchProblem) -> ProblemRepetition | None:
    """The run around the middle of the problem; None if there is none, or blocks are joined by several variables.

    Arrays are compared by identity."""
    count = problem.num_variables
    if count < MIN_VARIABLES:
        return None
    edges: list[list[tuple[int, int, bool]]] = [[] for _ in range(count)]
    for edge in problem.edges:
        edges[edge.u].append((edge.v - edge.u, id(edge.table), True))
        edges[edge.v].append((edge.u - edge.v, id(edge.table), False))
    parts = zip(problem.unary_s, problem.memory_bytes, edges, strict=True)
    found = _run(key_ids((id(costs), id(use), tuple(sorted(own))) for costs, use, own in parts))
    if found is None:
        return None
    first, last, period = found
    if any(abs(offset) > period for own in edges[first : first + period] for offset, _, _ in own):
        return None
    ahead = [[offset for offset, _, _ in own if offset > 0] for own in edges[first : first + period]]
    best: tuple[int, ProblemRepetition] | None = None
    for phase in range(period):
        blocks = (last - first - phase) // period
        joints = _joints([ahead[(phase + place) % period] for place in range(period)])
        if len(joints) == 1 and blocks * period >= MIN_VARIABLES:
            repeats = ProblemRepetition(first + phase, period, blocks, joints[0])
            size = len(problem.unary_s[repeats.variable(0, repeats.joint)])
            if best is None or size < best[0]:
                best = size, repeats
    return None if best is None else best[1]


def _run(keys: Keys) -> PeriodicRun | None:
    """The run of the shortest period with at least two periods after the middle."""
    middle, most = len(keys) // 2, len(keys) // 4
    for period in (np.flatnonzero(keys[middle + 1 : middle + most] == keys[middle]) + 1).tolist():
        for run in periodic_runs(keys, period):
            if run.start <= middle <= run.stop - 2 * period:
                return run
    return None


def _joints(ahead: Sequence[Sequence[int]]) -> list[int]:
    """Indices with edges to the next block, given how far ahead the edges of each index go."""
    return [place for place, own in enumerate(ahead) if any(place + offset >= len(ahead) for offset in own)]
