"""Passes of tree-reweighted messages (``searchers.messages``) over a whole graph, in compiled loops.

Results are those of the passes in Python, bit for bit; those make equal messages once, which pays where tables are large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from autosbp.native import LOOPS
from autosbp.search._base import Costs, SearchProblem
from autosbp.search.searchers.loops import kernels

MOST_ADDITIONS = 2e8
"""Of a pass: more take longer than Python and equal messages made once."""
MOST_ENTRIES = 1e7
"""Of different tables: 160 MB, as each lies there twice."""
CHECKED = 5e7
"""Additions between two looks at the time: about 10 ms."""
Ints = NDArray[np.int64]
Finite = Callable[[Costs], Costs]


class Passes:
    """``messages`` and ``values`` as of the last pass.

    Args:
        begins: where the costs of each variable begin; one more, where the last ones end.
        firsts: the same of its arcs.
        arcs: the variable at the other end; where its table begins with a row for each own value, and for each of the
            other's; where messages to the own variable lie, and to the other one.
        tables: one behind the other.
        check: called often; may raise to abandon the work.
    """

    def __init__(self, begins: Ints, firsts: Ints, arcs: Ints, tables: Costs, check: Callable[[], None]) -> None:
        self._begins, self._firsts, self._tables, self._check = begins, firsts, tables, check
        self._arcs = np.ascontiguousarray(arcs)
        sizes, owners = np.diff(begins), np.repeat(np.arange(len(begins) - 1), np.diff(firsts))
        additions = sizes[owners] * sizes[arcs[:, 0]]
        self._parts = _parts(np.concatenate([[0], np.cumsum(additions)])[firsts])
        self._shares = shares(owners, arcs[:, 0], len(sizes))
        self.messages = np.zeros(int(sizes[owners].sum()))
        self.values = np.zeros(len(sizes), dtype=np.int64)

    def forward(self, costs: Costs, grain: float) -> None:
        """Values are chosen on the way; messages are rounded down to multiples of ``grain``."""
        none = np.empty_like(costs), np.empty_like(self.messages)
        for first, end in self._parts:
            self._pass(first, end, False, costs, grain, 0.0, *none)

    def backward(self, costs: Costs, grain: float) -> tuple[float, Costs, Costs]:
        """The bound, what values take more than the least of each variable, and the shifts, as messages."""
        excess, shifts, bound = np.empty_like(costs), np.empty_like(self.messages), 0.0
        for first, end in reversed(self._parts):
            bound = self._pass(first, end, True, costs, grain, bound, excess, shifts)
        return bound, excess, shifts

    def _pass(
        self, first: int, end: int, back: bool, costs: Costs, grain: float, bound: float, excess: Costs, shifts: Costs
    ) -> float:
        self._check()
        loops = kernels(np.inf)
        assert loops is not None
        found: float = loops.pass_messages(
            self._firsts, self._arcs, self._tables, self._begins, costs, self._shares, self.messages, self.values, excess,
            shifts, first, end, back, grain, bound,
        )  # fmt: skip
        return found


class MessagePasses:
    """A problem laid out for passes: all tables lie one behind the other, each twice.

    Args:
        finite: an array with what is forbidden as a finite cost.
        check: called often; may raise to abandon the work.
    """

    def __init__(self, problem: SearchProblem, finite: Finite, check: Callable[[], None]) -> None:
        self.sizes = np.array([len(costs) for costs in problem.unary_s], dtype=np.int64)
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
        into, out = self._starts[:-1].reshape(-1, 2), self._starts[:-1].reshape(-1, 2)[:, ::-1]
        arcs = np.stack([ends[:, ::-1], rows, rows[:, ::-1], into, out], axis=2).reshape(-1, 5)
        owners = ends.ravel()
        order = np.argsort(owners, kind="stable")
        firsts = np.searchsorted(owners[order], np.arange(len(self.sizes) + 1))
        self._passes = Passes(self.begins, firsts, arcs[order], self.tables, check)

    def reprice(self, prices: Sequence[float]) -> None:
        """Begin anew at other prices of memory, one a variable."""
        self.costs = self.unary + np.repeat(np.array(prices), self.sizes) * self.memory

    def priced(self, values: Sequence[int]) -> float:
        """What an assignment costs."""
        chosen = np.array(values, dtype=np.int64)
        of_edges = self._own_rows + chosen[self._lower] * self.sizes[self._upper] + chosen[self._upper]
        return float(sum(self.costs[self.begins[:-1] + chosen].tolist()) + sum(self.tables[of_edges].tolist()))

    def forward(self, grain: float) -> tuple[int, ...]:
        """The values chosen on the way."""
        self._passes.forward(self.costs, grain)
        return tuple(self._passes.values.tolist())

    def backward(self, grain: float) -> tuple[float, list[Costs], list[tuple[Costs, Costs]]]:
        """The bound, what values take more than the least of each variable, and the shifts of each edge."""
        bound, excess, shifts = self._passes.backward(self.costs, grain)
        parts = _split(shifts, self._starts)
        return bound, _split(excess, self.begins), list(zip(parts[::2], parts[1::2], strict=True))


def can_pass(problem: SearchProblem) -> bool:
    """Whether passes in C are there, are quicker, and do not take much memory."""
    additions = sum(edge.table.size for edge in problem.edges)
    entries = sum({id(edge.table): edge.table.size for edge in problem.edges}.values())
    return LOOPS is not None and 0 < additions <= MOST_ADDITIONS and entries <= MOST_ENTRIES


def shares(owners: Ints, others: Ints, count: int) -> Costs:
    """Of each variable, one part in as many chains as go through it, given both ends of all arcs."""
    above, below = (np.bincount(owners[side], minlength=count) for side in (others > owners, others < owners))
    return 1.0 / np.maximum(np.maximum(above, below), 1)


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
