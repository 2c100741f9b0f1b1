"""Passes of ``searchers.messages`` over a whole graph in C, where its loops were built.

All tables lie one behind the other, each twice: with a row for each value of one end, and of the other. Results are those of
the passes in Python, bit for bit; those make equal messages once, which pays where tables are large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from autosbp.native import LOOPS
from autosbp.search._base import Costs, SearchProblem

MOST_ADDITIONS = 2e8
"""Of a pass: more take longer than Python and equal messages made once."""
MOST_ENTRIES = 1e7
"""Of different tables: 160 MB, as each lies there twice."""
CHECKED = 5e7
"""Additions between two looks at the time: about 10 ms."""
Ints = NDArray[np.int64]
Finite = Callable[[Costs], Costs]


class MessagePasses:
    """A graph laid out for passes.

    Args:
        finite: an array with what is forbidden as a finite cost.
        check: called often; may raise to abandon the work.
    """

    def __init__(
        self, problem: SearchProblem, shares: Sequence[float], finite: Finite, check: Callable[[], None]
    ) -> None:
        self._check = check
        self.shares, self.sizes = np.array(shares), np.array([len(costs) for costs in problem.unary_s], dtype=np.int64)
        self.begins = _begins(self.sizes)
        made = {id(costs): finite(costs) for costs in problem.unary_s}
        self.unary = np.concatenate([made[id(costs)] for costs in problem.unary_s])
        self.memory = np.concatenate(problem.memory_bytes).astype(np.float64)
        self.costs = self.unary
        ends = np.array([(edge.u, edge.v) for edge in problem.edges], dtype=np.int64).reshape(-1, 2)
        self.tables, rows = _laid_out(problem, finite)
        self._lower, self._upper, self._own_rows = ends[:, 0], ends[:, 1], rows[:, 0]
        # Messages to the lower end and to the upper one of each edge.
        self._starts = _begins(self.sizes[ends.ravel()])
        self.messages = np.zeros(self._starts[-1])
        into, out = self._starts[:-1].reshape(-1, 2), self._starts[:-1].reshape(-1, 2)[:, ::-1]
        arcs = np.stack([ends[:, ::-1], rows, rows[:, ::-1], into, out], axis=2).reshape(-1, 5)
        owners = ends.ravel()
        order = np.argsort(owners, kind="stable")
        self.arcs = np.ascontiguousarray(arcs[order])
        self.firsts = np.searchsorted(owners[order], np.arange(len(self.sizes) + 1))
        self.values = np.zeros(len(self.sizes), dtype=np.int64)
        additions = self.sizes[self.arcs[:, 0]] * self.sizes[owners[order]]
        self._parts = _parts(np.concatenate([[0], np.cumsum(additions)])[self.firsts])

    def reprice(self, prices: Sequence[float]) -> None:
        """Begin anew at other prices of memory, one a variable."""
        self.costs = self.unary + np.repeat(np.array(prices), self.sizes) * self.memory

    def priced(self, values: Sequence[int]) -> float:
        """What an assignment costs."""
        chosen = np.array(values, dtype=np.int64)
        of_edges = self._own_rows + chosen[self._lower] * self.sizes[self._upper] + chosen[self._upper]
        return float(sum(self.costs[self.begins[:-1] + chosen].tolist()) + sum(self.tables[of_edges].tolist()))

    def forward(self, grain: float) -> tuple[int, ...]:
        """The values chosen on the way; messages are rounded down to multiples of ``grain``."""
        none = np.empty_like(self.costs), np.empty_like(self.messages)
        for first, end in self._parts:
            self._pass(first, end, False, grain, 0.0, *none)
        return tuple(self.values.tolist())

    def backward(self, grain: float) -> tuple[float, list[Costs], list[tuple[Costs, Costs]]]:
        """The bound, what values take more than the least of each variable, and the shifts of each edge."""
        excess, shifts, bound = np.empty_like(self.costs), np.empty_like(self.messages), 0.0
        for first, end in reversed(self._parts):
            bound = self._pass(first, end, True, grain, bound, excess, shifts)
        parts = _split(shifts, self._starts)
        return bound, _split(excess, self.begins), list(zip(parts[::2], parts[1::2], strict=True))

    def _pass(
        self, first: int, end: int, back: bool, grain: float, bound: float, excess: Costs, shifts: Costs
    ) -> float:
        self._check()
        assert LOOPS is not None
        found: float = LOOPS.pass_messages(
            self.firsts, self.arcs, self.tables, self.begins, self.costs, self.shares, self.messages, self.values, excess,
            shifts, first, end, back, grain, bound,
        )  # fmt: skip
        return found


def can_pass(problem: SearchProblem) -> bool:
    """Whether passes in C are there, are quicker, and do not take much memory."""
    additions = sum(edge.table.size for edge in problem.edges)
    entries = sum({id(edge.table): edge.table.size for edge in problem.edges}.values())
    return LOOPS is not None and 0 < additions <= MOST_ADDITIONS and entries <= MOST_ENTRIES


def _laid_out(problem: SearchProblem, finite: Finite) -> tuple[Costs, Ints]:
    """All tables, and where those of each edge begin: with a row for each value of the lower end, and of the upper one."""
    places: dict[int, int] = {}
    arrays: list[Costs] = []
    room = 0
    for edge in problem.edges:
        if id(edge.table) not in places:
            places[id(edge.table)] = room
            table = finite(edge.table)
            arrays += [table.ravel(), table.T.ravel()]
            room += 2 * table.size
    begins = [places[id(edge.table)] for edge in problem.edges]
    rows = [(begin, begin + edge.table.size) for begin, edge in zip(begins, problem.edges, strict=True)]
    return np.concatenate(arrays), np.array(rows, dtype=np.int64)


def _parts(before: Ints) -> list[tuple[int, int]]:
    """Variables, some at a time, given the additions before each of them."""
    cuts = np.searchsorted(before, np.arange(CHECKED, before[-1], CHECKED)).tolist()
    return list(pairwise(sorted({0, *cuts, len(before) - 1})))


def _begins(sizes: Ints) -> Ints:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])


def _split(flat: Costs, begins: Ints) -> list[Costs]:
    return [flat[first:end] for first, end in pairwise(begins.tolist())]
