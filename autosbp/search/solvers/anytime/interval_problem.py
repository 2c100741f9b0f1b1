"""Input of the anytime solver: a cost graph whose choices use memory during time intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosbp.search._base import SearchProblem

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Interval = tuple[int, int]

FORBIDDEN = float(1 << 50)
"""Finite cost of forbidden choices; sums with it keep the digits of all other costs."""
LARGEST_SUM = float(1 << 44)
"""Upper limit of the sum of scaled costs, far below ``FORBIDDEN``."""


@dataclass(frozen=True, eq=False)
class IntervalProblem:
    """Choose one value per node.

    Args:
        costs: of each node's values; inf forbids.
        usages: for each node, bytes of each value during an interval ``[from, to)`` of instants; there may be several.
        tables: costs of pairs of values, by nodes ``(u, v)`` with ``u < v``; shape (values of u, values of v).
        limit: the most bytes at any instant.
    """

    costs: Sequence[Floats]
    usages: Sequence[Mapping[Interval, Floats]]
    tables: Mapping[tuple[int, int], Floats]
    limit: float

    @property
    def num_nodes(self) -> int:
        return len(self.costs)

    @property
    def num_instants(self) -> int:
        """The last instant plus one."""
        return max((to for usage in self.usages for _, to in usage), default=0)


def interval_problem(problem: SearchProblem) -> tuple[IntervalProblem, float]:
    """A search problem with memory summed at one instant and scaled costs; also returns the scale factor.

    Tables that are one object stay one."""
    bound = sum(_greatest(costs) for costs in problem.unary_s) + sum(_greatest(edge.table) for edge in problem.edges)
    scale = 2.0 ** np.floor(np.log2(LARGEST_SUM / bound)) if bound > 0 else 1.0
    tables: dict[tuple[int, int], Floats] = {}
    scaled: dict[tuple[int, bool], Floats] = {}
    for edge in problem.edges:
        turned = edge.u > edge.v
        pair = (edge.v, edge.u) if turned else (edge.u, edge.v)
        if (id(edge.table), turned) not in scaled:
            scaled[id(edge.table), turned] = scale * (edge.table.T if turned else edge.table)
        table = scaled[id(edge.table), turned]
        tables[pair] = tables[pair] + table if pair in tables else table
    costs = [scale * each for each in problem.unary_s]
    if problem.memory_limit_bytes is None:
        return IntervalProblem(costs, [{}] * len(costs), tables, np.inf), scale
    usages = [{(0, 1): use.astype(np.float64)} for use in problem.memory_bytes]
    limit = float(problem.memory_limit_bytes - problem.fixed_memory_bytes)
    return IntervalProblem(costs, usages, tables, limit), scale


def _greatest(costs: Floats) -> float:
    finite = costs[np.isfinite(costs)]
    return float(np.abs(finite).max()) if finite.size else 0.0
