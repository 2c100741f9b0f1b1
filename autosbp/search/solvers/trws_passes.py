"""Passes of tree-reweighted messages (``solvers.trws``) over a whole graph, in compiled loops.

Results are bit for bit those of the passes in Python. The Python passes compute equal messages once, which pays if
tables are large."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from autosbp.native import LOOPS
from autosbp.search._base import Costs, SearchProblem
from autosbp.search.solvers.minplus_backend import load_kernels

MOST_ADDITIONS = 2e8
"""Additions of a pass up to which compiled loops are faster than Python with equal messages computed once."""
MOST_ENTRIES = 1e7
"""Entries of distinct tables: 160 MB, as each is stored twice."""
ADDITIONS_BETWEEN_CHECKS = 5e7
"""Additions between two checks of the clock: about 10 ms."""
Ints = NDArray[np.int64]
Finite = Callable[[Costs], Costs]


class PassRunner:
    """Message passes over flat arrays; ``messages`` and ``values`` are those of the last pass.

    Args:
        begins: [variable + 1] offsets of each variable's costs, and their end.
        firsts: [variable + 1] offsets of each variable's arcs, and their end.
        arcs: [arc, 5] the variable at the other end; the offsets of the table with one row per own value, and with one
            row per value of the other end; the offsets of messages to the own variable, and to the other one.
        tables: all tables, concatenated.
        check: called often; may raise to abandon the work.
    """

    def __init__(self, begins: Ints, firsts: Ints, arcs: Ints, tables: Costs, check: Callable[[], None]) -> None:
        self._begins, self._firsts, self._tables, self._check = begins, firsts, tables, check
        self._arcs = np.ascontiguousarray(arcs)
        sizes, owners = np.diff(begins), np.repeat(np.arange(len(begins) - 1), np.diff(firsts))
        additions = sizes[owners] * sizes[arcs[:, 0]]
        self._parts = _parts(np.concatenate([[0], np.cumsum(additions)])[firsts])
        self._shares = chain_shares(owners, arcs[:, 0], len(sizes))
        self.messages = np.zeros(int(sizes[owners].sum()))
        self.values = np.zeros(len(sizes), dtype=np.int64)

    def forward(self, costs: Costs, grain: float) -> None:
        """Forward pass; chooses ``values`` on the way. Messages are rounded down to multiples of ``grain``."""
        none = np.empty_like(costs), np.empty_like(self.messages)
        for first, end in self._parts:
            self._pass(first, end, False, costs, grain, 0.0, *none)

    def backward(self, costs: Costs, grain: float) -> tuple[float, Costs, Costs]:
        """Backward pass; returns the bound, each value's excess over the least of its variable, and the shifts, as messages."""
        excess, shifts, bound = np.empty_like(costs), np.empty_like(self.messages), 0.0
        for first, end in reversed(self._parts):
            bound = self._pass(first, end, True, costs, grain, bound, excess, shifts)
        return bound, excess, shifts

    def _pass(
        self, first: int, end: int, back: bool, costs: Costs, grain: float, bound: float, excess: Costs, shifts: Costs
    ) -> float:
        self._check()
        loops = load_kernels(np.inf)
        assert loops is not None
        found: float = loops.pass_messages(
            self._firsts, self._arcs, self._tables, self._begins, costs, self._shares, self.messages, self.values, excess,
            shifts, first, end, back, grain, bound,
        )  # fmt: skip
        return found


class MessagePasses:
    """A problem laid out for passes: all tables concatenated, each in both orientations.

    Args:
        finite: replaces forbidden entries of an array by a finite cost.
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
        # Messages to the lower and to the upper end of each edge.
        self._starts = _begins(self.sizes[ends.ravel()])
        into, out = self._starts[:-1].reshape(-1, 2), self._starts[:-1].reshape(-1, 2)[:, ::-1]
        arcs = np.stack([ends[:, ::-1], rows, rows[:, ::-1], into, out], axis=2).reshape(-1, 5)
        owners = ends.ravel()
        order = np.argsort(owners, kind="stable")
        firsts = np.searchsorted(owners[order], np.arange(len(self.sizes) + 1))
        self._passes = PassRunner(self.begins, firsts, arcs[order], self.tables, check)

    def set_multipliers(self, prices: Sequence[float]) -> None:
        """Start over at other Lagrange multipliers of memory, one per variable."""
        self.costs = self.unary + np.repeat(np.array(prices), self.sizes) * self.memory

    def priced(self, values: Sequence[int]) -> float:
        """Cost of an assignment at the multipliers."""
        chosen = np.array(values, dtype=np.int64)
        of_edges = self._own_rows + chosen[self._lower] * self.sizes[self._upper] + chosen[self._upper]
        return float(sum(self.costs[self.begins[:-1] + chosen].tolist()) + sum(self.tables[of_edges].tolist()))

    def forward(self, grain: float) -> tuple[int, ...]:
        """Values chosen by a forward pass."""
        self._passes.forward(self.costs, grain)
        return tuple(self._passes.values.tolist())

    def backward(self, grain: float) -> tuple[float, list[Costs], list[tuple[Costs, Costs]]]:
        """The bound, each value's excess over the least of its variable, and the shifts of each edge."""
        bound, excess, shifts = self._passes.backward(self.costs, grain)
        parts = _split(shifts, self._starts)
        return bound, _split(excess, self.begins), list(zip(parts[::2], parts[1::2], strict=True))


def is_compiled_pass_faster(problem: SearchProblem) -> bool:
    """Whether passes in C are available, faster, and need little memory."""
    additions = sum(edge.table.size for edge in problem.edges)
    entries = sum({id(edge.table): edge.table.size for edge in problem.edges}.values())
    return LOOPS is not None and 0 < additions <= MOST_ADDITIONS and entries <= MOST_ENTRIES


def chain_shares(owners: Ints, others: Ints, count: int) -> Costs:
    """[variable] 1 / (number of chains through it), given both ends of all arcs."""
    above, below = (np.bincount(owners[side], minlength=count) for side in (others > owners, others < owners))
    return 1.0 / np.maximum(np.maximum(above, below), 1)


def _laid_out(problem: SearchProblem, finite: Finite) -> tuple[Costs, Ints]:
    """All tables, and per edge the offsets of its table with rows per value of the lower end, and of the upper end."""
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
    """Ranges of variables between clock checks, given the additions before each variable."""
    cuts = np.searchsorted(before, np.arange(ADDITIONS_BETWEEN_CHECKS, before[-1], ADDITIONS_BETWEEN_CHECKS)).tolist()
    return list(pairwise(sorted({0, *cuts, len(before) - 1})))


def _begins(sizes: Ints) -> Ints:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])


def _split(flat: Costs, begins: Ints) -> list[Costs]:
    return [flat[first:end] for first, end in pairwise(begins.tolist())]
