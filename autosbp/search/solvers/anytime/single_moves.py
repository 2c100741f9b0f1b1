"""Moves of single nodes: annealing, and descent."""

from __future__ import annotations

import numpy as np

from autosbp.search.solvers.anytime.assignment import (
    TINY,
    AssignmentState,
    assign,
    num_instants_of_node,
    update_memory_if_fits,
)
from autosbp.search.solvers.anytime.cost_network import ArcArrays, UsageRows
from autosbp.search.solvers.anytime.interval_problem import Floats, Ints
from autosbp.search.solvers.numba_functions import compiled_nogil


@compiled_nogil
def anneal(
    state: AssignmentState, best: Floats, best_x: Ints, links: ArcArrays, rows: UsageRows, limit: float,
    free: Ints, steps: int, temperature: float, seed: int,
) -> int:  # fmt: skip
    """Metropolis steps of random nodes to random values that fit; keeps the best. Returns the entries touched."""
    np.random.seed(seed)
    touched = 0
    for _ in range(steps):
        i = free[np.random.randint(len(free))]
        low, size, value = links.first[i], links.first[i + 1] - links.first[i], state.x[i]
        new = np.random.randint(size - 1)
        if new >= value:
            new += 1
        worse = state.gains[low + new] - state.gains[low + value]
        touched += 8
        if worse > 0.0 and np.random.random() >= np.exp(-worse / temperature):
            continue
        touched += num_instants_of_node(rows, i)
        if update_memory_if_fits(state, rows, limit, i, new):
            touched += assign(state, links, i, new)
            if state.total[0] < best[0] - TINY:
                best[0] = state.total[0]
                best_x[:] = state.x
    return touched


@compiled_nogil
def descend(state: AssignmentState, links: ArcArrays, rows: UsageRows, limit: float, free: Ints) -> int:
    """Set every node in turn to its cheapest value, or the second cheapest if that does not fit, until none gains.

    Returns the entries touched."""
    touched = 0
    moved = True
    while moved:
        moved = False
        for i in free:
            low, size = links.first[i], links.first[i + 1] - links.first[i]
            tried = state.gains[low + state.x[i]] - TINY
            while True:
                least = -1
                for value in range(size):
                    if state.gains[low + value] < tried and (
                        least < 0 or state.gains[low + value] < state.gains[low + least]
                    ):
                        least = value
                touched += size
                if least < 0:
                    break
                if update_memory_if_fits(state, rows, limit, i, least):
                    touched += assign(state, links, i, least)
                    moved = True
                    break
                # It does not fit: try the next cheapest, if it gains.
                floor = state.gains[low + least]
                runner = -1
                for value in range(size):
                    if floor < state.gains[low + value] < tried and (
                        runner < 0 or state.gains[low + value] < state.gains[low + runner]
                    ):
                        runner = value
                if runner >= 0 and update_memory_if_fits(state, rows, limit, i, runner):
                    touched += assign(state, links, i, runner)
                    moved = True
                break
    return touched


@compiled_nogil
def reduce_memory(
    state: AssignmentState, links: ArcArrays, rows: UsageRows, limit: float, free: Ints, moves: int
) -> bool:
    """Reduce the fullest instant by the cheapest bytes until none exceeds the limit. False if that fails."""
    for _ in range(moves):
        at = int(np.argmax(state.filled)) if len(state.filled) else 0
        over = state.filled[at] - limit if len(state.filled) else 0.0
        if over <= 0.0:
            return True
        least, node, choice = np.inf, -1, -1
        for i in free:
            low, old = links.first[i], state.x[i]
            for value in range(links.first[i + 1] - low):
                freed = 0.0
                for r in range(rows.begin[i], rows.begin[i + 1]):
                    if rows.start[r] <= at < rows.stop[r]:
                        freed += rows.used[rows.place[r] + old] - rows.used[rows.place[r] + value]
                if freed <= 0.0:
                    continue
                worse = state.gains[low + value] - state.gains[low + old]
                price = worse / min(freed, over) if worse > 0.0 else worse * freed
                if price < least and _keeps_others_within_limit(state, rows, limit, i, value):
                    least, node, choice = price, i, value
        if node < 0:
            return False
        _set_value(state, links, rows, node, choice)
    return False


@compiled_nogil
def _keeps_others_within_limit(state: AssignmentState, rows: UsageRows, limit: float, i: int, new: int) -> bool:
    """Whether no row that grows with the new value exceeds the limit."""
    for r in range(rows.begin[i], rows.begin[i + 1]):
        grown = rows.used[rows.place[r] + new] - rows.used[rows.place[r] + state.x[i]]
        if grown > 0.0:
            for at in range(rows.start[r], rows.stop[r]):
                if state.filled[at] + grown > limit:
                    return False
    return True


@compiled_nogil
def _set_value(state: AssignmentState, links: ArcArrays, rows: UsageRows, i: int, new: int) -> None:
    for r in range(rows.begin[i], rows.begin[i + 1]):
        grown = rows.used[rows.place[r] + new] - rows.used[rows.place[r] + state.x[i]]
        for at in range(rows.start[r], rows.stop[r]):
            state.filled[at] += grown
    assign(state, links, i, new)
