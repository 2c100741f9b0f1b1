"""Dominated values: those that another value beats even if every neighbour has to be boxed to and from it.

Value j of a variable dominates value i if it takes no more memory and

    unary[j] + sum over edges of the boxing between i's layout and j's <= unary[i]

Boxing costs obey the triangle inequality: whatever the neighbours choose, j followed by that boxing does what i does.
This holds under any Lagrange multiplier of memory, too. Removing dominated values changes neither the optimum nor any
least memory that an optimum could need."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosbp.search._base import Edge, SearchProblem

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class EdgePort:
    """The point where a variable meets an edge.

    ``ids`` [value] are the layout ids of its values there. ``among_s`` is the boxing cost between any two values, or
    None if a neighbour accepts one layout only. ``made`` is True for outputs and False for inputs."""

    ids: NDArray[np.int64]
    boxing_s: Floats | None
    made: bool

    def replacement_s(self) -> Floats:
        """``[i, j]``: seconds that j pays to replace i."""
        if self.boxing_s is None:
            return np.where(self.ids[:, None] == self.ids[None, :], 0.0, np.inf)
        return self.boxing_s.T if self.made else self.boxing_s

    @property
    def key(self) -> Hashable:
        return self.ids.tobytes(), id(self.boxing_s), self.made


def undominated(unary_s: Floats, memory: NDArray[np.int64] | None, ports: Sequence[EdgePort]) -> Bools:
    """Mask of the values to keep; ``memory`` is None without a memory limit."""
    count = len(unary_s)
    better = unary_s[None, :] - unary_s[:, None]
    if memory is not None:
        better[memory[None, :] > memory[:, None]] = np.inf
    for port in ports:
        better = better + port.replacement_s()
    np.fill_diagonal(better, np.inf)
    slack = 1e-12 * np.abs(unary_s)
    strictly = better < -slack[:, None]
    # Of equal values, the first one stays.
    equal = (np.abs(better) <= slack[:, None]) & (np.abs(better.T) <= slack[:, None])
    earlier = np.tri(count, k=-1, dtype=bool)
    keep: Bools = ~(strictly | (equal & earlier)).any(axis=1)
    return keep


class DominanceFilter:
    """Cache of masks and reduced tables, so that equal variables keep sharing them."""

    def __init__(self) -> None:
        self._masks: dict[Hashable, Bools] = {}
        self._arrays: dict[Hashable, NDArray[np.float64]] = {}
        self._uses: dict[Hashable, NDArray[np.int64]] = {}

    def mask(self, unary_s: Floats, memory: NDArray[np.int64] | None, ports: Sequence[EdgePort]) -> Bools:
        key = (id(unary_s), id(memory), tuple(port.key for port in ports))
        if key not in self._masks:
            found = undominated(unary_s, memory, ports)
            self._masks[key] = self._masks.setdefault(found.tobytes(), found)
        return self._masks[key]

    def reduce(self, problem: SearchProblem, masks: Sequence[Bools | None]) -> SearchProblem:
        """The problem over the values kept; a mask of None keeps all."""
        unary = tuple(self._cut(costs, mask) for costs, mask in zip(problem.unary_s, masks, strict=True))
        memory = tuple(self._cut_bytes(use, mask) for use, mask in zip(problem.memory_bytes, masks, strict=True))
        edges = tuple(Edge(e.u, e.v, self._cut_table(e.table, masks[e.u], masks[e.v])) for e in problem.edges)
        return replace(problem, unary_s=unary, memory_bytes=memory, edges=edges)

    def _cut(self, costs: Floats, mask: Bools | None) -> Floats:
        if mask is None:
            return costs
        key = (id(costs), id(mask))
        if key not in self._arrays:
            self._arrays[key] = costs[mask]
        return self._arrays[key]

    def _cut_bytes(self, use: NDArray[np.int64], mask: Bools | None) -> NDArray[np.int64]:
        if mask is None:
            return use
        key = (id(use), id(mask))
        if key not in self._uses:
            self._uses[key] = use[mask]
        return self._uses[key]

    def _cut_table(self, table: Floats, rows: Bools | None, columns: Bools | None) -> Floats:
        if rows is None and columns is None:
            return table
        key = (id(table), id(rows), id(columns))
        if key not in self._arrays:
            part = table if rows is None else table[rows]
            self._arrays[key] = np.ascontiguousarray(part if columns is None else part[:, columns])
        return self._arrays[key]
