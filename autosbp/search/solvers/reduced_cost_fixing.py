"""Reduced-cost fixing: removes values that no assignment as good as the incumbent can hold."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosbp.search._base import Bytes, Costs, Edge, SearchProblem
from autosbp.search.solvers.cost_tables import ArrayInterner

MAX_PASSES = 4
SLACK_RELATIVE = 1e-9  # wider than any rounding of the sums below


@dataclass(frozen=True, slots=True, eq=False)
class ReducedProblem:
    """``problem`` over the kept values; ``values[i][x]`` is value x of variable i in the original problem."""

    problem: SearchProblem
    values: tuple[NDArray[np.int64], ...]

    def lift(self, assignment: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(int(kept[x]) for kept, x in zip(self.values, assignment, strict=True))

    def lower(self, assignment: tuple[int, ...]) -> tuple[int, ...] | None:
        """The inverse of ``lift``; None if a value was removed."""
        places = [int(np.searchsorted(kept, x)) for kept, x in zip(self.values, assignment, strict=True)]
        kept_all = all(
            place < len(kept) and kept[place] == x
            for kept, place, x in zip(self.values, places, assignment, strict=True)
        )
        return tuple(places) if kept_all else None


def canonical(problem: SearchProblem) -> ReducedProblem:
    """The same problem with parallel edges merged, and arrays of equal content as one object."""
    dedupe = ArrayInterner()
    memory: dict[int, Bytes] = {}
    same_bytes: dict[bytes, Bytes] = {}
    for use in problem.memory_bytes:
        solid = np.ascontiguousarray(use, dtype=np.int64)
        memory[id(use)] = same_bytes.setdefault(solid.tobytes(), solid)
    pairs: dict[tuple[int, int], Costs] = {}
    turned: dict[int, Costs] = {}
    sums: dict[tuple[int, int], Costs] = {}
    for edge in problem.edges:
        table = dedupe(edge.table)
        if edge.u > edge.v:
            if id(table) not in turned:
                turned[id(table)] = dedupe(table.T)
            table = turned[id(table)]
        pair = (min(edge.u, edge.v), max(edge.u, edge.v))
        if pair in pairs:
            key = (id(pairs[pair]), id(table))
            if key not in sums:
                sums[key] = dedupe(pairs[pair] + table)
            table = sums[key]
        pairs[pair] = table
    same = replace(
        problem,
        unary_s=tuple(dedupe(costs) for costs in problem.unary_s),
        memory_bytes=tuple(memory[id(use)] for use in problem.memory_bytes),
        edges=tuple(Edge(u, v, table) for (u, v), table in pairs.items()),
    )
    return ReducedProblem(same, tuple(np.arange(len(costs)) for costs in same.unary_s))


def prune(reduced: ReducedProblem, upper_s: float, price_s_per_byte: float = 0.0) -> ReducedProblem:
    """Remove values that only assignments of more than ``upper_s``, or over the memory limit, can hold.

    The cost of an assignment that fits the memory limit is at least its penalised cost
    ``cost + price * (memory - limit)``. That is at least a sum of minima, of each variable's penalised unary costs and
    of each edge. For one value, its own unary cost and the minima of its rows replace theirs; values with a bound above
    ``upper_s`` go. Without a limit the multiplier is 0. Shared arrays that lose the same values stay shared. An
    assignment of cost <= ``upper_s`` that fits is never lost."""
    for _ in range(MAX_PASSES):
        keep = _keep(reduced.problem, upper_s, price_s_per_byte)
        if keep is None or all(mask.all() for mask in keep):
            break
        reduced = select(reduced, keep)
    return reduced


def _keep(problem: SearchProblem, upper_s: float, price: float) -> list[NDArray[np.bool_]] | None:
    """Masks of the values to keep; None if the bound says nothing (every assignment is forbidden)."""
    minima: dict[int, tuple[Costs, Costs, float]] = {}
    for edge in problem.edges:
        if id(edge.table) not in minima:
            rows, columns = edge.table.min(axis=1), edge.table.min(axis=0)
            minima[id(edge.table)] = (rows, columns, float(rows.min()))
    least_edges = [minima[id(edge.table)][2] for edge in problem.edges]
    sides: list[list[tuple[int, int]]] = [[] for _ in problem.names]
    for edge in problem.edges:
        sides[edge.u].append((id(edge.table), 0))
        sides[edge.v].append((id(edge.table), 1))
    # Variables with the same arrays, as in repeated blocks, are processed once.
    known: dict[Hashable, int] = {}
    kinds = [
        known.setdefault((id(costs), id(use), *own), len(known))
        for costs, use, own in zip(problem.unary_s, problem.memory_bytes, sides, strict=True)
    ]
    of_kind = {kind: at for at, kind in enumerate(kinds)}
    limit = problem.memory_limit_bytes
    if limit is None:  # without a limit, penalised costs would be no lower bound
        price = 0.0
    priced = [problem.unary_s[at] + price * problem.memory_bytes[at] for at in of_kind.values()]
    lows = [float(costs.min()) for costs in priced]
    least = [lows[kind] for kind in kinds]
    base = [problem.fixed_s, *least, *least_edges]
    if limit is not None:
        base.append(-price * (limit - problem.fixed_memory_bytes))
    bound = math.fsum(base) if all(math.isfinite(x) for x in base) else math.inf
    if not math.isfinite(bound):
        return None
    above = [costs - low for costs, low in zip(priced, lows, strict=True)]
    for kind, at in of_kind.items():
        for table, side in sides[at]:
            above[kind] = above[kind] + (minima[table][side] - minima[table][2])
    room = upper_s - bound + SLACK_RELATIVE * math.fsum(abs(x) for x in (*base, upper_s) if math.isfinite(x))
    masks = [np.isfinite(extra) & (extra <= room) for extra in above]
    if limit is not None:
        floors = [int(problem.memory_bytes[at].min()) for at in of_kind.values()]
        spare = limit - problem.fixed_memory_bytes - sum(floors[kind] for kind in kinds)
        masks = [
            mask & (problem.memory_bytes[at] - floor <= spare)
            for mask, at, floor in zip(masks, of_kind.values(), floors, strict=True)
        ]
    keep = [masks[kind] for kind in kinds]
    return keep if all(mask.any() for mask in keep) else None


def select(reduced: ReducedProblem, keep: list[NDArray[np.bool_]]) -> ReducedProblem:
    """The problem over the kept values, with one new array per distinct (array, kept values)."""
    problem = reduced.problem
    tokens: dict[int, bytes] = {}
    masks = [tokens.setdefault(id(mask), mask.tobytes()) for mask in keep]
    unary: dict[tuple[int, bytes], Costs] = {}
    memory: dict[tuple[int, bytes], Bytes] = {}
    tables: dict[tuple[int, bytes, bytes], Costs] = {}
    for costs, use, mask, token in zip(problem.unary_s, problem.memory_bytes, keep, masks, strict=True):
        if (id(costs), token) not in unary:
            unary[id(costs), token] = costs[mask]
        if (id(use), token) not in memory:
            memory[id(use), token] = use[mask]
    for edge in problem.edges:
        key = (id(edge.table), masks[edge.u], masks[edge.v])
        if key not in tables:
            tables[key] = np.ascontiguousarray(edge.table[np.ix_(keep[edge.u], keep[edge.v])])
    smaller = replace(
        problem,
        unary_s=tuple(unary[id(costs), token] for costs, token in zip(problem.unary_s, masks, strict=True)),
        memory_bytes=tuple(memory[id(use), token] for use, token in zip(problem.memory_bytes, masks, strict=True)),
        edges=tuple(Edge(e.u, e.v, tables[id(e.table), masks[e.u], masks[e.v]]) for e in problem.edges),
    )
    return ReducedProblem(smaller, tuple(values[mask] for values, mask in zip(reduced.values, keep, strict=True)))
