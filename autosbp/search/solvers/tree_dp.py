"""Dynamic programming for small forests: one pass from the leaves to the roots, and one back."""

from __future__ import annotations

from autosbp.search._base import Costs, SearchProblem
from autosbp.search.solvers.elimination import Solution

MAX_VARIABLES = 16
MAX_ENTRIES = 1 << 20
"""Above these limits, sharing equal products and removing values is worth the planning."""


def solve_forest(problem: SearchProblem) -> Solution | None:
    """The optimum without the memory limit, as ``minimise`` returns it; None for cyclic or large problems."""
    if problem.num_variables > MAX_VARIABLES or sum(edge.table.size for edge in problem.edges) > MAX_ENTRIES:
        return None
    walk = _walk(problem)
    if walk is None:
        return None
    costs = list(problem.unary_s)
    for child, parent, table in reversed(walk):
        costs[parent] = costs[parent] + (costs[child][:, None] + table).min(axis=0)
    children = {child for child, _, _ in walk}
    values = [-1 if i in children else int(own.argmin()) for i, own in enumerate(costs)]
    bound = sum(float(own[x]) for own, x in zip(costs, values, strict=True) if x >= 0)
    for child, parent, table in walk:
        values[child] = int((costs[child] + table[:, values[parent]]).argmin())
    operations = sum(table.size for _, _, table in walk)
    return Solution(bound, tuple(values), len(walk), operations)


def _walk(problem: SearchProblem) -> list[tuple[int, int, Costs]] | None:
    """(child, parent, table[x_child, x_parent]) of every edge, parents first; None if there is a cycle."""
    near: list[list[tuple[int, int, Costs]]] = [[] for _ in problem.names]
    for at, edge in enumerate(problem.edges):
        near[edge.u].append((at, edge.v, edge.table.T))
        near[edge.v].append((at, edge.u, edge.table))
    through = [-2] * problem.num_variables  # the edge by which a variable was reached; -1 for a root
    walk: list[tuple[int, int, Costs]] = []
    for root in range(problem.num_variables):
        if through[root] != -2:
            continue
        through[root], waiting = -1, [root]
        for parent in waiting:  # grows during the loop
            for at, child, table in near[parent]:
                if at == through[parent]:
                    continue
                if through[child] != -2:
                    return None
                through[child] = at
                walk.append((child, parent, table))
                waiting.append(child)
    return walk
