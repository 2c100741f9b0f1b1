"""Search with repeated layers tied to one choice, as AutoDDL restricts its search (section 4.5.1).

The cost of tying is the difference to ``exact``, which leaves layers free."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from autosbp.search._base import Costs, Edge, SearchOptions, SearchProblem, SearchResult, cost_of, memory_of
from autosbp.search.solvers.exact import exact


def tied(problem: SearchProblem, options: SearchOptions) -> SearchResult:
    """The best assignment in which equal variables take the same value; the bound covers only such assignments.

    Variables are equal if their costs and memory are equal, as those of repeated blocks are. Variables without costs of
    their own (copies that several readers share) must also lie between equal variables.

    Raises:
        InfeasibleError: as ``exact``, of the tied problem.
    """
    group = variable_groups(problem)
    smaller = _merge_groups(problem, group)
    result = exact(smaller, replace(options, start=None))
    assignment = tuple(result.assignment[at] for at in group)
    return replace(
        result,
        assignment=assignment,
        cost_s=cost_of(problem, assignment),
        memory_bytes=memory_of(problem, assignment),
        searcher="tied",
    )


def variable_groups(problem: SearchProblem) -> list[int]:
    """The group of each variable, numbered in order of first members."""
    number = _ArrayNumbers()
    own: list[Hashable] = [
        (number.of(costs), number.of(use)) for costs, use in zip(problem.unary_s, problem.memory_bytes, strict=True)
    ]
    met: list[set[Hashable]] = [set() for _ in problem.names]
    for edge in problem.edges:
        met[edge.u].add((number.of(edge.table), 0, own[edge.v]))
        met[edge.v].add((number.of(edge.table), 1, own[edge.u]))
    index: dict[Hashable, int] = {}
    return [
        index.setdefault(mine if costs.any() else (mine, frozenset(near)), len(index))
        for mine, near, costs in zip(own, met, problem.unary_s, strict=True)
    ]


class _ArrayNumbers:
    """Assigns one number to all arrays of equal content. Each array is compared once, however often it occurs."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._equal: dict[Hashable, int] = {}

    def of(self, array: npt.NDArray[Any]) -> int:
        """The number of an array, which must live as long as this object."""
        if id(array) not in self._known:
            content = (array.shape, array.dtype.str, array.tobytes())
            self._known[id(array)] = self._equal.setdefault(content, len(self._equal))
        return self._known[id(array)]


def _merge_groups(problem: SearchProblem, group: list[int]) -> SearchProblem:
    """One variable per group; costs and memory add up, and an edge within a group becomes a unary cost."""
    count = max(group, default=-1) + 1
    members = [[i for i, at in enumerate(group) if at == each] for each in range(count)]
    unary: list[Costs] = [problem.unary_s[own[0]] * float(len(own)) for own in members]
    memory = [problem.memory_bytes[own[0]] * len(own) for own in members]
    tables: dict[tuple[int, int], Costs] = {}
    for edge in problem.edges:
        one, two = group[edge.u], group[edge.v]
        if one == two:
            unary[one] = unary[one] + np.diagonal(edge.table)
            continue
        table = edge.table if one < two else edge.table.T
        pair = (min(one, two), max(one, two))
        tables[pair] = tables[pair] + table if pair in tables else table
    return replace(
        problem,
        names=tuple(problem.names[own[0]] for own in members),
        unary_s=tuple(unary),
        memory_bytes=tuple(memory),
        edges=tuple(Edge(u, v, table) for (u, v), table in tables.items()),
    )
