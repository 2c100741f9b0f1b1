"""Closes the gap of the Lagrangian bound with CP-SAT."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from autosbp.search._base import Costs, SearchProblem

MAX_ENTRIES = 50_000  # booleans of the model: values, and pairs of values that an edge couples
OBJECTIVE_UNITS = 2.0**46  # integer steps that the spread of costs is cut into; exact in float64
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class SatLimits:
    """Limits of one CP-SAT solve.

    ``work`` is in CP-SAT's deterministic seconds, which end at the same point on every machine. ``should_stop`` is
    polled while CP-SAT runs."""

    seed: int
    time_limit_s: float
    work: float
    should_stop: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class SatResult:
    """``bound_s`` is proved over all assignments of cost <= ``upper_s``; ``assignment`` is the best one found."""

    bound_s: float
    assignment: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class _Normal:
    """Costs as ``base_s`` + nonnegative unary costs + nonnegative tables; all-zero tables are left out."""

    base_s: float
    size_s: float  # sum of absolute parts of base_s, for its rounding
    unary_s: list[Costs]
    tables: list[tuple[int, int, Costs]]


def num_entries(problem: SearchProblem) -> int:
    """Upper bound on the size of the model that ``close_gap`` would build."""
    return sum(len(costs) for costs in problem.unary_s) + sum(edge.table.size for edge in problem.edges)


def close_gap(
    problem: SearchProblem,
    upper_s: float,
    hint: tuple[int, ...] | None,
    limits: SatLimits,
) -> SatResult | None:
    """Minimise the cost under the memory limit, exact up to rounding to ``OBJECTIVE_UNITS`` steps.

    Costs are rounded down, so the bound is sound. Terms that alone exceed ``upper_s`` are forbidden. One worker and a
    fixed seed: the same result unless the time limit strikes.

    Returns:
        None if it stopped before it had any bound, or if no assignment of cost <= ``upper_s`` is feasible.
    """
    normal = _normalise(problem)
    room = upper_s - normal.base_s + 1e-9 * (normal.size_s + abs(upper_s))
    span = sum(_greatest(costs, room) for costs in normal.unary_s)
    span += sum(_greatest(table, room) for _, _, table in normal.tables)
    scale = OBJECTIVE_UNITS / span if span > 0.0 else 1.0
    model = cp_model.CpModel()
    terms: list[cp_model.IntVar] = []
    weights: list[int] = []

    def boolean(cost_s: float) -> cp_model.IntVar:
        variable = model.new_bool_var("")
        weight = math.floor(cost_s * scale)
        if weight:
            terms.append(variable)
            weights.append(weight)
        return variable

    values: list[dict[int, cp_model.IntVar]] = []
    for i, costs in enumerate(normal.unary_s):
        values.append({int(x): boolean(float(costs[x])) for x in np.flatnonzero(_open(costs, room))})
        model.add_exactly_one(values[i].values())
        if hint is not None:
            for x, variable in values[i].items():
                model.add_hint(variable, int(x == hint[i]))
    for u, v, table in normal.tables:
        by_row: dict[int, list[cp_model.IntVar]] = {x: [] for x in values[u]}
        by_column: dict[int, list[cp_model.IntVar]] = {y: [] for y in values[v]}
        for x, y in np.argwhere(_open(table, room)):
            if int(x) in by_row and int(y) in by_column:
                pair = boolean(float(table[x, y]))
                by_row[int(x)].append(pair)
                by_column[int(y)].append(pair)
        for x, pairs in by_row.items():
            model.add(cp_model.LinearExpr.sum(pairs) == values[u][x])
        for y, pairs in by_column.items():
            model.add(cp_model.LinearExpr.sum(pairs) == values[v][y])
    if problem.memory_limit_bytes is not None:
        uses = [(var, int(problem.memory_bytes[i][x])) for i, own in enumerate(values) for x, var in own.items()]
        total = cp_model.LinearExpr.weighted_sum([var for var, _ in uses], [use for _, use in uses])
        model.add(total <= problem.memory_limit_bytes - problem.fixed_memory_bytes)
    model.minimize(cp_model.LinearExpr.weighted_sum(terms, weights))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.catch_sigint_signal = False  # an interrupt is for the whole program, not only for the solver
    solver.parameters.random_seed = limits.seed % (1 << 31)
    solver.parameters.max_time_in_seconds = max(limits.time_limit_s, 0.01)
    solver.parameters.max_deterministic_time = limits.work
    status = _solve(solver, model, limits.should_stop)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):
        return None
    bound = normal.base_s + max(solver.best_objective_bound, 0.0) / scale - 1e-12 * normal.size_s
    if status == cp_model.UNKNOWN:
        return SatResult(bound, None)
    return SatResult(bound, tuple(next(x for x, var in own.items() if solver.boolean_value(var)) for own in values))


def _solve(solver: cp_model.CpSolver, model: cp_model.CpModel, should_stop: Callable[[], bool]) -> int:
    """Solve on a separate thread, so that ``should_stop`` is polled meanwhile."""
    statuses: list[int] = []
    worker = threading.Thread(target=lambda: statuses.append(int(solver.solve(model))), daemon=True)
    worker.start()
    while worker.is_alive():
        worker.join(POLL_S)
        if should_stop():
            solver.stop_search()
    return statuses[0]


def _normalise(problem: SearchProblem) -> _Normal:
    unary = [costs.copy() for costs in problem.unary_s]
    parts = [problem.fixed_s]
    tables: list[tuple[int, int, Costs]] = []
    split: dict[int, tuple[Costs, Costs, Costs]] = {}
    for edge in problem.edges:
        if id(edge.table) not in split:
            rows = _finite_or_zero(edge.table.min(axis=1))
            rest = edge.table - rows[:, None]
            columns = _finite_or_zero(rest.min(axis=0))
            split[id(edge.table)] = (rows, columns, rest - columns)
        rows, columns, rest = split[id(edge.table)]
        unary[edge.u] += rows
        unary[edge.v] += columns
        if rest.any():
            tables.append((edge.u, edge.v, rest))
    for costs in unary:
        least = float(_finite_or_zero(costs.min(keepdims=True))[0])
        costs -= least
        parts.append(least)
    return _Normal(math.fsum(parts), math.fsum(abs(part) for part in parts), unary, tables)


def _finite_or_zero(costs: Costs) -> Costs:
    return np.where(np.isfinite(costs), costs, 0.0)


def _greatest(costs: NDArray[np.float64], room: float) -> float:
    return float(costs[_open(costs, room)].max(initial=0.0))


def _open(costs: Costs, room: float) -> NDArray[np.bool_]:
    return np.isfinite(costs) & (costs <= room)
