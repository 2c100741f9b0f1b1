"""JSON format of the contest on intra-operator parallelism (ASPLOS 2025; google/iopddl): read, check and cost exactly."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autosbp.errors import InfeasibleError, InputError
from autosbp.search.solvers.anytime.interval_problem import Floats, IntervalProblem

FORBIDDEN = 10**18 // 2
"""Costs from this value on mark forbidden choices."""


@dataclass(frozen=True)
class Instance:
    """An instance as in the file; integers of any size."""

    costs: Sequence[Sequence[int]]
    usages: Sequence[Sequence[int]]
    intervals: Sequence[Sequence[int]]
    edges: Sequence[tuple[int, int]]
    tables: Sequence[Sequence[int]]
    limit: int | None

    def cost(self, chosen: Sequence[int]) -> int:
        """Exact cost of an assignment."""
        nodes = sum(costs[value] for costs, value in zip(self.costs, chosen, strict=True))
        sizes = [len(costs) for costs in self.costs]
        pairs = zip(self.edges, self.tables, strict=True)
        return nodes + sum(table[chosen[u] * sizes[v] + chosen[v]] for (u, v), table in pairs)

    def most_used(self, chosen: Sequence[int]) -> int:
        """Maximum memory of an assignment over all instants."""
        changes: dict[int, int] = {}
        for usage, (begin, end), value in zip(self.usages, self.intervals, chosen, strict=True):
            if end > begin:
                changes[begin] = changes.get(begin, 0) + usage[value]
                changes[end] = changes.get(end, 0) - usage[value]
        used = most = 0
        for instant in sorted(changes):
            used += changes[instant]
            most = max(most, used)
        return most

    def problem(self) -> IntervalProblem:
        """The problem for the solver: doubles, inf for forbidden choices, one table per pair of nodes."""
        costs = [_doubles(each) for each in self.costs]
        usages = [
            {(begin, end): np.array(usage, dtype=np.float64)} if end > begin else {}
            for usage, (begin, end) in zip(self.usages, self.intervals, strict=True)
        ]
        tables: dict[tuple[int, int], Floats] = {}
        for (u, v), flat in zip(self.edges, self.tables, strict=True):
            table = _doubles(flat).reshape(len(costs[u]), len(costs[v]))
            if u == v:
                costs[u] = costs[u] + table.diagonal()
                continue
            pair, table = ((u, v), table) if u < v else ((v, u), table.T)
            tables[pair] = tables[pair] + table if pair in tables else table
        return IntervalProblem(costs, usages, tables, float("inf") if self.limit is None else float(self.limit))


def _doubles(costs: Sequence[int]) -> Floats:
    found = np.array(costs, dtype=np.float64)
    found[found >= FORBIDDEN] = np.inf
    return found


def load(path: Path) -> Instance:
    """Read a file, ``.json`` or ``.json.gz``.

    Raises:
        InputError: names the place in the file that is missing or invalid.
    """
    try:
        text = path.read_bytes()
        data = json.loads(gzip.decompress(text) if path.suffix == ".gz" else text)
    except (OSError, EOFError, ValueError) as error:
        raise InputError("file", str(path), f"expected a JSON file, plain or gzip: {error}") from None
    problem = _member(data, "", "problem", dict)
    nodes, edges = _member(problem, "problem", "nodes", dict), _member(problem, "problem", "edges", dict)
    costs = _member(nodes, "problem.nodes", "costs", list)
    intervals = nodes.get("intervals") or [[0, 0]] * len(costs)
    usages = nodes.get("usages") or [[0] * len(each) for each in costs]
    limit = problem.get("usage_limit")
    pairs = _member(edges, "problem.edges", "nodes", list)
    instance = Instance(costs, usages, intervals, pairs, _member(edges, "problem.edges", "costs", list), limit)
    _check(instance)
    return instance


def _member(data: Any, path: str, name: str, kind: type) -> Any:
    place = f"{path}.{name}" if path else name
    if not isinstance(data, dict) or not isinstance(data.get(name), kind):
        raise InputError(place, None if not isinstance(data, dict) else data.get(name), f"expected a {kind.__name__}")
    return data[name]


def _check(instance: Instance) -> None:
    count = len(instance.costs)
    if not count:
        raise InputError("problem.nodes.costs", [], "expected one node or more")
    for name, length in (("usages", len(instance.usages)), ("intervals", len(instance.intervals))):
        if length != count:
            raise InputError(f"problem.nodes.{name}", length, f"expected one for each of the {count} nodes")
    if instance.limit is not None and (not isinstance(instance.limit, int) or instance.limit < 0):
        raise InputError("problem.usage_limit", instance.limit, "expected an integer of at least 0")
    for i, (costs, usage, span) in enumerate(zip(instance.costs, instance.usages, instance.intervals, strict=True)):
        if not _integers(costs):
            raise InputError(f"problem.nodes.costs[{i}]", costs, "expected integers")
        if not costs:
            raise InfeasibleError(f"problem.nodes.costs[{i}]", 0, 1, "the node has no strategy to choose from")
        if len(usage) != len(costs) or not _integers(usage) or min(usage) < 0:
            raise InputError(f"problem.nodes.usages[{i}]", usage, f"expected {len(costs)} integers of at least 0")
        if len(span) != 2 or not _integers(span) or span[0] < 0:
            raise InputError(f"problem.nodes.intervals[{i}]", span, "expected two integers of at least 0")
    if len(instance.tables) != len(instance.edges):
        raise InputError("problem.edges.costs", len(instance.tables), f"one for each of {len(instance.edges)} edges")
    for e, (pair, table) in enumerate(zip(instance.edges, instance.tables, strict=True)):
        if len(pair) != 2 or not _integers(pair) or not all(0 <= node < count for node in pair):
            raise InputError(f"problem.edges.nodes[{e}]", pair, f"expected two nodes in 0..{count - 1}")
        size = len(instance.costs[pair[0]]) * len(instance.costs[pair[1]])
        if len(table) != size or not _integers(table):
            raise InputError(f"problem.edges.costs[{e}]", len(table), f"expected {size} integers")


def _integers(values: Sequence[object]) -> bool:
    return all(type(value) is int for value in values)
