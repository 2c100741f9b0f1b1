"""Elimination order of variables, as a straight-line program over table slots."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

MAX_TABLE_ENTRIES = 1 << 25  # 256 MiB; larger tables are split, which loses exactness


@dataclass(frozen=True, slots=True)
class MinPlusGroup:
    """One min-plus elimination: tables in slots ``slots``, whose dims are local axes ``axes``, into slot ``output``.

    The local axes are the variables of ``scope``, then the eliminated one; ``sizes`` are their domains' sizes."""

    slots: tuple[int, ...]
    axes: tuple[tuple[int, ...], ...]
    scope: tuple[int, ...]
    sizes: tuple[int, ...]
    output: int


@dataclass(frozen=True, slots=True)
class EliminationStep:
    """The elimination of one variable. Several groups (mini-buckets) are minimised separately: a lower bound."""

    variable: int
    groups: tuple[MinPlusGroup, ...]


@dataclass(frozen=True, slots=True)
class EliminationProgram:
    """Steps of an elimination.

    The sum of the slots ``constants`` is the optimum, or a lower bound unless ``is_exact`` (no table was split).
    ``left`` are the slots over variables that are ``kept``, with their scopes: the optimum is then a table over these
    variables."""

    num_slots: int
    steps: tuple[EliminationStep, ...]
    constants: tuple[int, ...]
    is_exact: bool
    rounds: int
    left: tuple[tuple[int, tuple[int, ...]], ...] = ()
    num_variables: int = 0
    kept: tuple[int, ...] = ()


def plan_elimination(
    sizes: Sequence[int],
    scopes: Sequence[tuple[int, ...]],
    max_entries: int = MAX_TABLE_ENTRIES,
    last: int | None = None,
    kept: tuple[int, ...] = (),
) -> EliminationProgram:
    """Order the eliminations for tables ``scopes`` over variables with domains of ``sizes``.

    Each round takes candidates and eliminates a maximal independent set of them, chosen greedily in index order, leaves
    first. Candidates are the variables with the cheapest elimination (min-weight rule: the product of the domains of
    the variable and its neighbours), and those with at most one neighbour. So a chain of L identical blocks halves each
    round, every pair of blocks in the same way, and the number of distinct products grows with log L.

    Args:
        last: a variable to eliminate after all others.
        kept: variables that are not eliminated.
    """
    return _planned(tuple(sizes), tuple(scopes), max_entries, last, kept)


@lru_cache(maxsize=64)
def _planned(
    sizes: tuple[int, ...],
    scopes: tuple[tuple[int, ...], ...],
    max_entries: int,
    last: int | None,
    kept: tuple[int, ...],
) -> EliminationProgram:
    planner = _Planner(sizes, scopes, max_entries, last)
    for variable in kept:
        del planner.waiting[variable]
    rounds = 0
    while planner.waiting:
        rounds += 1
        for variable in planner.next_round():
            planner.eliminate(variable)
    constants = tuple(slot for slot, scope in enumerate(planner.scopes) if not scope)
    left = sorted({slot for variable in kept for slot in planner.slots[variable]})
    return EliminationProgram(
        len(planner.scopes), tuple(planner.steps), constants, planner.is_exact, rounds,
        tuple((slot, planner.scopes[slot]) for slot in left), len(sizes), kept,
    )  # fmt: skip


class _Planner:
    def __init__(
        self, sizes: Sequence[int], scopes: Sequence[tuple[int, ...]], max_entries: int, last: int | None
    ) -> None:
        self.scopes = list(scopes)
        self.steps: list[EliminationStep] = []
        self.is_exact = True
        self.waiting = dict.fromkeys(range(len(sizes)))  # ordered, so that ties go to the lowest index
        self._sizes, self._max_entries, self._last = sizes, max_entries, last
        self.slots: list[set[int]] = [set() for _ in sizes]
        for slot, scope in enumerate(scopes):
            for variable in scope:
                self.slots[variable].add(slot)
        self._near: list[set[int]] = [set() for _ in sizes]
        self._weight = [0] * len(sizes)
        self._refresh(range(len(sizes)))

    def _refresh(self, variables: Iterable[int]) -> None:
        for v in variables:
            near = {other for slot in self.slots[v] for other in self.scopes[slot]}
            near.discard(v)
            self._near[v] = near
            self._weight[v] = math.prod((self._sizes[n] for n in near), start=self._sizes[v])

    def next_round(self) -> list[int]:
        """Variables to eliminate now, no two of them neighbours."""
        waiting = [v for v in self.waiting if v != self._last] or list(self.waiting)
        leaves = [v for v in waiting if len(self._near[v]) <= 1]
        others = [v for v in waiting if len(self._near[v]) > 1]
        if others:
            least = min(self._weight[v] for v in others)
            others = [v for v in others if self._weight[v] == least]
        chosen: list[int] = []
        blocked: set[int] = set()
        for v in leaves + others:
            if v not in blocked:
                chosen.append(v)
                blocked |= self._near[v]
        return chosen

    def eliminate(self, variable: int) -> None:
        groups: list[MinPlusGroup] = []
        for slots, scope in self._buckets(variable):
            order = (*scope, variable)
            local = {v: axis for axis, v in enumerate(order)}
            axes = tuple(tuple(local[v] for v in self.scopes[slot]) for slot in slots)
            output = len(self.scopes)
            groups.append(MinPlusGroup(slots, axes, scope, tuple(self._sizes[v] for v in order), output))
            self.scopes.append(scope)
            for v in scope:
                self.slots[v].add(output)
        self.is_exact &= len(groups) == 1
        self.steps.append(EliminationStep(variable, tuple(groups)))
        del self.waiting[variable]
        used, self.slots[variable] = self.slots[variable], set()
        for slot in used:
            for v in self.scopes[slot]:
                self.slots[v].discard(slot)
        self._refresh(sorted(self._near[variable]))

    def _buckets(self, variable: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """The variable's tables as (slots, scope of the result), split only if the result would be too large."""
        buckets: list[tuple[list[int], set[int]]] = []
        for slot in sorted(self.slots[variable], key=lambda s: (-len(self.scopes[s]), s)):
            scope = set(self.scopes[slot]) - {variable}
            for slots, union in buckets:
                entries = math.prod(self._sizes[v] for v in union | scope)
                if entries <= self._max_entries or scope <= union:
                    slots.append(slot)
                    union |= scope
                    break
            else:
                buckets.append(([slot], scope))
        return [(tuple(slots), tuple(sorted(union))) for slots, union in buckets]
