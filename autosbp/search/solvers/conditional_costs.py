"""Costs seen from one variable, shared by searchers that change one variable at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from autosbp.search._base import Bytes, Costs, SearchProblem
from autosbp.search.solvers.solver_state import max_abs_finite

MAX_KNOWN = 1 << 15


@dataclass(frozen=True, slots=True, eq=False)
class Neighbourhood:
    """A problem as one row of costs per variable, given the others.

    Forbidden entries (inf) become ``forbidden_s``, which exceeds the spread of all finite costs together. So fewer
    forbidden pairs always cost less, and a start that holds some can be improved step by step.

    ``rows[i]`` holds, for each neighbour j of variable i, ``(j, table)`` with ``table[x_j]`` the costs over x_i;
    ``others[i]`` are these neighbours. Variables of one of the ``kinds`` have the same costs, bytes and tables, as in
    repeated blocks."""

    unary_s: tuple[Costs, ...]
    rows: tuple[tuple[tuple[int, Costs], ...], ...]
    memory_bytes: tuple[Bytes, ...]
    memory_limit_bytes: int | None
    forbidden_s: float
    max_bytes: tuple[int, ...]
    others: tuple[tuple[int, ...], ...]
    kinds: tuple[int, ...] = ()
    _known: dict[tuple[int, ...], Costs] = field(default_factory=dict)

    @staticmethod
    def of(problem: SearchProblem) -> Neighbourhood:
        largest: dict[int, float] = {}
        arrays = [*problem.unary_s, *(edge.table for edge in problem.edges)]
        for array in arrays:
            if id(array) not in largest:
                largest[id(array)] = max_abs_finite(array)
        forbidden_s = 1.0 + 2.0 * sum(largest[id(array)] for array in arrays)
        done: dict[tuple[int, bool], Costs] = {}

        def finite(array: Costs, flip: bool = False) -> Costs:
            key = (id(array), flip)
            if key not in done:
                turned = array.T if flip else array
                done[key] = np.ascontiguousarray(np.where(np.isinf(turned), forbidden_s, turned))
            return done[key]

        rows: list[list[tuple[int, Costs]]] = [[] for _ in problem.names]
        for edge in problem.edges:
            rows[edge.v].append((edge.u, finite(edge.table)))
            rows[edge.u].append((edge.v, finite(edge.table, flip=True)))
        greatest = {id(use): int(use.max()) for use in {id(use): use for use in problem.memory_bytes}.values()}
        most = [greatest[id(use)] for use in problem.memory_bytes]
        limit = problem.memory_limit_bytes
        kinds: dict[tuple[int, ...], int] = {}
        kind_of = tuple(
            kinds.setdefault((id(costs), id(use), *(id(table) for _, table in row)), len(kinds))
            for costs, use, row in zip(problem.unary_s, problem.memory_bytes, rows, strict=True)
        )
        return Neighbourhood(
            unary_s=tuple(finite(costs) for costs in problem.unary_s),
            rows=tuple(tuple(row) for row in rows),
            memory_bytes=problem.memory_bytes,
            memory_limit_bytes=None if limit is None else limit - problem.fixed_memory_bytes,
            forbidden_s=forbidden_s,
            max_bytes=tuple(most),
            others=tuple(tuple([other for other, _ in row]) for row in rows),
            kinds=kind_of if 2 * len(kinds) <= len(kind_of) else (),
        )

    def costs(self, variable: int, assignment: Sequence[int]) -> Costs:
        """Seconds that each value of ``variable`` adds, given the others' values; read-only."""
        if not self.kinds:
            return self._sum(variable, assignment)
        key = (self.kinds[variable], *[assignment[other] for other in self.others[variable]])
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            known = self._known[key] = self._sum(variable, assignment)
        return known

    def _sum(self, variable: int, assignment: Sequence[int]) -> Costs:
        total = self.unary_s[variable].copy()
        for other, table in self.rows[variable]:
            total += table[assignment[other]]
        return total

    def partial_costs(self, variable: int, assignment: Sequence[int]) -> Costs:
        """As ``costs``, without neighbours whose value is still -1."""
        total = self.unary_s[variable].copy()
        for other, table in self.rows[variable]:
            if assignment[other] >= 0:
                total += table[assignment[other]]
        return total

    def memory(self, assignment: Sequence[int]) -> int:
        """Bytes of the variables, without the fixed ones."""
        return sum(int(use[value]) for use, value in zip(self.memory_bytes, assignment, strict=True))

    def max_useful_penalty_s_per_byte(self) -> float:
        """A memory penalty in seconds a byte, far above any useful trade of memory for time: all costs over all bytes."""
        known: dict[int, int] = {}
        spread_bytes = 0
        for use in self.memory_bytes:
            if id(use) not in known:
                known[id(use)] = int(np.ptp(use))
            spread_bytes += known[id(use)]
        return max(self.forbidden_s - 1.0, 1e-30) / max(spread_bytes, 1)
