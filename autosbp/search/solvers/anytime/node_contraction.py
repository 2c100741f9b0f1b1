"""Contracts nodes whose values imply each other into one.

If every value of either node of an edge allows at most one value of the other, one choice determines both. In
compilers' sharding graphs most edges are of this kind (an op that must follow its input). The rest is often hundreds of
times smaller."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosbp.search.solvers.anytime.interval_problem import FORBIDDEN, Floats, Interval, IntervalProblem, Ints


@dataclass(frozen=True, eq=False)
class ContractedNetwork:
    """A smaller problem, and the map back: node i of the whole takes ``values[i][x[cluster[i]]]``."""

    problem: IntervalProblem
    cluster: Ints
    values: Sequence[Ints]

    def expand(self, x: Ints) -> list[int]:
        """The assignment of the whole problem."""
        chosen = x[self.cluster].tolist()
        return [int(values[value]) for values, value in zip(self.values, chosen, strict=True)]

    def keep(self, kept: Sequence[Ints]) -> ContractedNetwork:
        """The network with only the values ``kept``, per cluster."""
        problem = restricted(self.problem, kept)
        values = [values[kept[at]] for at, values in zip(self.cluster.tolist(), self.values, strict=True)]
        return ContractedNetwork(problem, self.cluster, values)


def contract(problem: IntervalProblem) -> ContractedNetwork:
    """Merge nodes that imply each other, and remove forbidden values. Costs are those of the whole problem."""
    cluster, values = _clusters(problem)
    count = int(cluster.max()) + 1 if len(cluster) else 0
    sizes = [0] * count
    for at, own in zip(cluster.tolist(), values, strict=True):
        sizes[at] = len(own)
    costs: list[Floats] = [np.zeros(size) for size in sizes]
    usages: list[dict[Interval, Floats]] = [{} for _ in sizes]
    for node, (at, own) in enumerate(zip(cluster.tolist(), values, strict=True)):
        there = own >= 0
        costs[at] += np.where(there, problem.costs[node][own], np.inf)
        for span, use in problem.usages[node].items():
            used = np.where(there, use[own], 0.0)
            usages[at][span] = usages[at][span] + used if span in usages[at] else used
    tables: dict[tuple[int, int], Floats] = {}
    picked = _SubtableCache()
    for (u, v), table in problem.tables.items():
        a, b = int(cluster[u]), int(cluster[v])
        if a == b:
            costs[a] += np.where((values[u] >= 0) & (values[v] >= 0), table[values[u], values[v]], np.inf)
            continue
        pair = (a, b) if a < b else (b, a)
        joined = picked(table, values[u], values[v], turned=a > b)
        tables[pair] = tables[pair] + joined if pair in tables else joined
    core = ContractedNetwork(IntervalProblem(costs, usages, tables, problem.limit), cluster, values)
    core = core.keep([np.flatnonzero(np.isfinite(each)) for each in costs])
    while (kept := _fitting_values(core.problem)) is not None:
        core = core.keep(kept)
    return core


class _SubtableCache:
    """Parts of tables; equal parts of one object are one object."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes, bytes, bool], Floats] = {}

    def __call__(self, table: Floats, rows: Ints, columns: Ints, *, turned: bool = False) -> Floats:
        key = id(table), rows.tobytes(), columns.tobytes(), turned
        if key not in self._known:
            part = table[rows[:, None], columns]
            self._known[key] = part.T if turned else part
        return self._known[key]


def with_tables_folded(problem: IntervalProblem) -> IntervalProblem:
    """Turn tables of nodes without a choice, and tables that are sums of two costs, into costs.

    Forbidden entries become ``FORBIDDEN``."""
    costs = [np.minimum(each, FORBIDDEN) for each in problem.costs]
    tables: dict[tuple[int, int], Floats] = {}
    known: dict[int, tuple[Floats, bool]] = {}
    for (u, v), exact in problem.tables.items():
        if not exact.size:
            continue
        if id(exact) not in known:
            table = np.ascontiguousarray(np.minimum(exact, FORBIDDEN))
            sums = table[:, :1] + (table[0] - table[0, 0])
            known[id(exact)] = table, min(table.shape) == 1 or np.array_equal(table, sums)
        table, is_sum = known[id(exact)]
        if is_sum:
            costs[u] = costs[u] + table[:, 0]
            costs[v] = costs[v] + (table[0] - table[0, 0])
        else:
            tables[u, v] = table
    return IntervalProblem(costs, problem.usages, tables, problem.limit)


def _clusters(problem: IntervalProblem) -> tuple[Ints, list[Ints]]:
    """Per node, its cluster and, for every value of that, its own value; -1 if there is none."""
    partners: list[list[tuple[int, Floats]]] = [[] for _ in problem.costs]
    for (u, v), table in _bijective(problem.tables.items()):
        partners[u].append((v, table))
        partners[v].append((u, table.T))
    cluster = np.full(problem.num_nodes, -1, dtype=np.int64)
    values: list[Ints] = [np.zeros(0, dtype=np.int64)] * problem.num_nodes
    count = 0
    for root in range(problem.num_nodes):
        if cluster[root] >= 0:
            continue
        cluster[root], values[root] = count, np.arange(len(problem.costs[root]))
        pending = [root]
        while pending:
            node = pending.pop()
            for other, table in partners[node]:
                if cluster[other] < 0:
                    allowed = np.isfinite(table)
                    partner = np.where(allowed.any(axis=1), allowed.argmax(axis=1), -1)
                    cluster[other] = count
                    values[other] = np.where(values[node] >= 0, partner[values[node]], -1)
                    pending.append(other)
        count += 1
    return cluster, values


def _bijective(
    tables: Iterable[tuple[tuple[int, int], Floats]],
) -> Iterable[tuple[tuple[int, int], Floats]]:
    """Edges where either value allows at most one of the other. Tables of one shape are tested together, each object once."""
    edges = list(tables)
    by_shape: dict[tuple[int, ...], dict[int, Floats]] = {}
    for _, table in edges:
        if min(table.shape) > 1:
            by_shape.setdefault(table.shape, {})[id(table)] = table
    found: set[int] = set()
    for alike in by_shape.values():
        allowed = np.isfinite(np.array(list(alike.values())))
        single = (allowed.sum(axis=1) <= 1).all(axis=1) & (allowed.sum(axis=2) <= 1).all(axis=1)
        found.update(np.array(list(alike))[single].tolist())
    return ((pair, table) for pair, table in edges if id(table) in found)


def restricted(problem: IntervalProblem, kept: Sequence[Ints]) -> IntervalProblem:
    """The problem with only some values of each node."""
    costs = [each[own] for each, own in zip(problem.costs, kept, strict=True)]
    usages = [{span: use[own] for span, use in usage.items()} for usage, own in zip(problem.usages, kept, strict=True)]
    picked = _SubtableCache()
    tables = {(u, v): picked(table, kept[u], kept[v]) for (u, v), table in problem.tables.items()}
    return IntervalProblem(costs, usages, tables, problem.limit)


def _fitting_values(problem: IntervalProblem) -> list[Ints] | None:
    """Values that fit next to the least memory of all other nodes; None if all do."""
    if not np.isfinite(problem.limit) or any(len(costs) == 0 for costs in problem.costs):
        return None
    least = np.zeros(problem.num_instants + 1)
    for usage in problem.usages:
        for (begin, end), use in usage.items():
            least[begin] += use.min()
            least[end] -= use.min()
    least = np.cumsum(least)
    kept: list[NDArray[np.int64]] = []
    removed = False
    for costs, usage in zip(problem.costs, problem.usages, strict=True):
        fits = np.ones(len(costs), dtype=bool)
        if len(costs) > 1:
            for (begin, end), use in usage.items():
                if use.max() > use.min() and end > begin:
                    fits &= least[begin:end].max() + use - use.min() <= problem.limit
        removed |= not fits.all()
        kept.append(np.flatnonzero(fits))
    return kept if removed else None
