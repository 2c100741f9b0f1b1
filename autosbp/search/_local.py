"""Costs seen from one variable: what the searchers that change a variable at a time share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autosbp.search._base import Bytes, Costs, SearchProblem
from autosbp.search._run import magnitude


@dataclass(frozen=True, slots=True, eq=False)
class Neighbourhood:
    """A problem as one row of costs per variable, given the others.

    Forbidden entries (inf) hold ``forbidden_s`` instead, which exceeds the spread of all finite costs together. So
    fewer forbidden pairs always cost less, and a start that holds some can be improved step by step.

    ``rows[i]`` holds, for each neighbour j of variable i, ``(j, table)`` with ``table[x_j]`` the costs over x_i.
    """

    unary_s: tuple[Costs, ...]
    rows: tuple[tuple[tuple[int, Costs], ...], ...]
    memory_bytes: tuple[Bytes, ...]
    memory_limit_bytes: int | None
    forbidden_s: float

    @staticmethod
    def of(problem: SearchProblem) -> Neighbourhood:
        largest: dict[int, float] = {}
        arrays = [*problem.unary_s, *(edge.table for edge in problem.edges)]
        for array in arrays:
            if id(array) not in largest:
                largest[id(array)] = magnitude(array)
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
        limit = problem.memory_limit_bytes
        return Neighbourhood(
            unary_s=tuple(finite(costs) for costs in problem.unary_s),
            rows=tuple(tuple(row) for row in rows),
            memory_bytes=problem.memory_bytes,
            memory_limit_bytes=None if limit is None else limit - problem.fixed_memory_bytes,
            forbidden_s=forbidden_s,
        )

    def costs(self, variable: int, assignment: Sequence[int]) -> Costs:
        """Seconds that each value of ``variable`` adds, given the others' values (a new array)."""
        total = self.unary_s[variable].copy()
        for other, table in self.rows[variable]:
            total += table[assignment[other]]
        return total

    def known_costs(self, variable: int, assignment: Sequence[int]) -> Costs:
        """As ``costs``, leaving out neighbours whose value is still -1."""
        total = self.unary_s[variable].copy()
        for other, table in self.rows[variable]:
            if assignment[other] >= 0:
                total += table[assignment[other]]
        return total

    def memory(self, assignment: Sequence[int]) -> int:
        """Bytes of the variables, without the fixed ones."""
        return sum(int(use[value]) for use, value in zip(self.memory_bytes, assignment, strict=True))

    def second_per_byte(self) -> float:
        """A price of memory far above what any trade of memory for time is worth: all costs over all bytes."""
        spread_bytes = sum(int(np.ptp(use)) for use in self.memory_bytes)
        return max(self.forbidden_s - 1.0, 1e-30) / max(spread_bytes, 1)
