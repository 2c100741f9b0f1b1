"""A problem as flat arrays, for compiled loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from autosbp.search.solvers.anytime.interval_problem import Floats, Interval, IntervalProblem, Ints


class ArcArrays(NamedTuple):
    """Nodes and arcs.

    Values of node i are ``first[i]`` to ``first[i + 1] - 1``, its arcs ``begin[i]`` to ``begin[i + 1] - 1``. Arc k goes
    to ``other[k]``; its table, own value first, is ``tables[place[k]:]``, which arcs of equal tables share. Every edge
    has two arcs; ``back[k]`` is the reverse. ``into[k]`` is the offset of a message from the other node, with one entry
    per own value."""

    first: Ints
    begin: Ints
    other: Ints
    place: Ints
    back: Ints
    into: Ints
    tables: Floats


class UsageRows(NamedTuple):
    """Memory use of nodes.

    Node i has the rows ``begin[i]`` to ``begin[i + 1] - 1``; row r adds ``used[place[r] + value]`` to the instants
    ``start[r]`` to ``stop[r] - 1``."""

    begin: Ints
    start: Ints
    stop: Ints
    place: Ints
    used: Floats


@dataclass(frozen=True, eq=False)
class CostNetwork:
    """A problem in flat arrays; ``base`` are the bytes used at each instant by any assignment."""

    costs: Floats
    links: ArcArrays
    rows: UsageRows
    base: Floats
    limit: float

    @property
    def num_nodes(self) -> int:
        return len(self.links.first) - 1

    @property
    def num_values(self) -> Ints:
        """Number of values of each node."""
        return np.diff(self.links.first)

    @cached_property
    def num_entries(self) -> int:
        """Entries of all edges' tables."""
        sizes, links = self.num_values, self.links
        owner = np.repeat(np.arange(self.num_nodes), np.diff(links.begin))
        return int(sizes[owner] @ sizes[links.other]) // 2

    def at(self, instants: Ints) -> CostNetwork:
        """The network with the limit at some instants only, in order."""
        rows = self.rows
        start, stop = np.searchsorted(instants, rows.start), np.searchsorted(instants, rows.stop)
        kept = np.flatnonzero(stop > start)
        begin = np.searchsorted(kept, rows.begin)
        some = UsageRows(begin, start[kept], stop[kept], rows.place[kept], rows.used)
        return replace(self, rows=some, base=self.base[instants])

    def filled(self, x: Ints) -> Floats:
        """Bytes at each instant under an assignment."""
        rows = self.rows
        owner = np.repeat(np.arange(self.num_nodes), np.diff(rows.begin))
        amount = rows.used[rows.place + x[owner]]
        size = len(self.base) + 1
        change = np.bincount(rows.start, amount, size) - np.bincount(rows.stop, amount, size)
        return self.base + np.cumsum(change)[:-1]


def lay_out(problem: IntervalProblem) -> CostNetwork:
    """Flat arrays of a problem in which every node has a value."""
    sizes = np.array([len(costs) for costs in problem.costs], dtype=np.int64)
    costs = np.concatenate([*problem.costs, np.zeros(0)])
    rows, base = _rows(problem)
    return CostNetwork(costs, _links(problem, sizes), rows, base, problem.limit)


def _links(problem: IntervalProblem, sizes: Ints) -> ArcArrays:
    pairs = np.array(list(problem.tables), dtype=np.int64).reshape(-1, 2)
    tables = list(problem.tables.values())
    count = len(pairs)
    flat, places = _flat([*tables, *(table.T for table in tables)])
    owner = np.concatenate([pairs[:, 0], pairs[:, 1]])
    other = np.concatenate([pairs[:, 1], pairs[:, 0]])
    order = np.argsort(owner, kind="stable")
    rank = np.empty(2 * count, dtype=np.int64)
    rank[order] = np.arange(2 * count)
    back = rank[np.concatenate([np.arange(count, 2 * count), np.arange(count)])]
    return ArcArrays(
        first=_starts(sizes),
        begin=_starts(np.bincount(owner, minlength=len(sizes))),
        other=other[order],
        place=places[order],
        back=back[order],
        into=_starts(sizes[owner[order]]),
        tables=flat,
    )


def _flat(tables: Sequence[Floats]) -> tuple[Floats, Ints]:
    """All entries, row by row, and the offset of each table. Views of the same memory are stored once."""
    known: dict[tuple[int, tuple[int, ...], tuple[int, ...]], int] = {}
    places, kept, size = np.empty(len(tables), dtype=np.int64), list[tuple[int, Floats]](), 0
    for at, table in enumerate(tables):
        key = table.__array_interface__["data"][0], table.shape, table.strides
        if key not in known:
            known[key] = size
            kept.append((size, table))
            size += table.size
        places[at] = known[key]
    flat = np.empty(size)
    for begin, table in kept:
        flat[begin : begin + table.size].reshape(table.shape)[...] = table
    return flat, places


def _starts(lengths: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _rows(problem: IntervalProblem) -> tuple[UsageRows, Floats]:
    """Rows over the relevant instants, and the bytes always used at these."""
    instants, base = _instants(problem)
    begin, start, stop, place = [0], list[int](), list[int](), list[int]()
    used: list[Floats] = []
    size = 0
    for usage in problem.usages:
        joined: dict[Interval, Floats] = {}
        for (opens, closes), use in usage.items():
            more = use - use.min()
            if more.any():
                span = int(np.searchsorted(instants, opens)), int(np.searchsorted(instants, closes))
                if span[1] > span[0]:
                    joined[span] = joined[span] + more if span in joined else more
        for span, more in joined.items():
            start.append(span[0])
            stop.append(span[1])
            place.append(size)
            used.append(more)
            size += len(more)
        begin.append(len(start))
    arrays = [np.array(each, dtype=np.int64) for each in (begin, start, stop, place)]
    return UsageRows(arrays[0], arrays[1], arrays[2], arrays[3], np.concatenate([*used, np.zeros(1)])), base


def _instants(problem: IntervalProblem) -> tuple[Ints, Floats]:
    """Instants at which the limit may be exceeded and that no neighbour dominates, with the bytes always used there."""
    last = problem.num_instants
    least, most = np.zeros(last + 1), np.zeros(last + 1)
    opens, closes = np.zeros(last + 1, dtype=bool), np.zeros(last + 1, dtype=bool)
    for usage in problem.usages:
        for (begin, end), use in usage.items():
            low, high = use.min(), use.max()
            for total, amount in ((least, low), (most, high)):
                total[begin] += amount
                total[end] -= amount
            if high > low:
                opens[begin] = closes[end] = True
    least, most = np.cumsum(least), np.cumsum(most)
    begins = np.flatnonzero(opens | closes)
    spans = list(zip(begins.tolist(), [*begins[1:].tolist(), last + 1][: len(begins)], strict=True))
    found = [
        (begin, end, float(least[begin:end].max()))
        for begin, end in spans
        if end > begin and most[begin:end].max() > problem.limit
    ]
    kept = [at for at in range(len(found)) if not _covered(found, at, opens, closes)]
    instants = np.array([found[at][0] for at in kept], dtype=np.int64)
    base = np.array([found[at][2] for at in kept])
    return instants, base


def _covered(
    found: Sequence[tuple[int, int, float]], at: int, opens: np.ndarray[tuple[int], np.dtype[np.bool_]],
    closes: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> bool:  # fmt: skip
    """Whether a neighbouring span is at least as full: the next one only adds uses, or this one only ends some of the last."""
    begin, end, base = found[at]
    if at + 1 < len(found):
        behind = found[at + 1]
        if behind[0] == end and not closes[end] and behind[2] >= base:
            return True
    if at:
        before = found[at - 1]
        if before[1] == begin and not opens[begin] and closes[begin] and before[2] >= base:
            return True
    return False
