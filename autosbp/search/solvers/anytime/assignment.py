"""An assignment with the costs of its changes, updated move by move."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autosbp.search.solvers.anytime.cost_network import ArcArrays, CostNetwork, UsageRows
from autosbp.search.solvers.anytime.interval_problem import Floats, Ints
from autosbp.search.solvers.numba_functions import compiled_fastmath, compiled_nogil

TINY = 0.5
"""Costs that differ by less are equal: they are integers, or scaled so that this is rounding."""


class AssignmentState(NamedTuple):
    """State of an assignment ``x``.

    ``gains[first[i] + value]`` is the cost of node i with each value, including its edges; ``filled`` are the bytes
    used at each instant; ``total[0]`` is the cost."""

    x: Ints
    gains: Floats
    filled: Floats
    total: Floats


def state_of(network: CostNetwork, x: Ints) -> AssignmentState:
    """State of an assignment, which is copied."""
    state = AssignmentState(x.copy(), np.empty(len(network.costs)), np.empty(len(network.base)), np.zeros(1))
    refresh(state, network.costs, network.base, network.links, network.rows)
    return state


@compiled_nogil
def refresh(state: AssignmentState, costs: Floats, base: Floats, links: ArcArrays, rows: UsageRows) -> None:
    """Recompute everything from ``state.x``."""
    state.gains[:] = costs
    state.filled[:] = base
    total = 0.0
    for i in range(len(state.x)):
        value = state.x[i]
        total += costs[links.first[i] + value]
        for k in range(links.begin[i], links.begin[i + 1]):
            j = links.other[k]
            low, size = links.first[j], links.first[j + 1] - links.first[j]
            row = links.place[k] + value * size
            for other in range(size):
                state.gains[low + other] += links.tables[row + other]
            if i < j:
                total += links.tables[row + state.x[j]]
        for r in range(rows.begin[i], rows.begin[i + 1]):
            add_to_instants(state.filled, rows.start[r], rows.stop[r], rows.used[rows.place[r] + value])
    state.total[0] = total


@compiled_fastmath
def max_filled(filled: Floats, start: int, stop: int) -> float:
    """Largest of ``filled[start:stop]``."""
    most: float = filled[start]
    for at in range(start + 1, stop):
        if filled[at] > most:
            most = filled[at]
    return most


@compiled_fastmath
def add_to_instants(filled: Floats, start: int, stop: int, amount: float) -> None:
    """Add ``amount`` to ``filled[start:stop]``."""
    for at in range(start, stop):
        filled[at] += amount


@compiled_nogil
def extra_bytes(rows: UsageRows, r: int, old: int, new: int) -> float:
    """Additional bytes of a row with another value."""
    amount: float = rows.used[rows.place[r] + new] - rows.used[rows.place[r] + old]
    return amount


@compiled_nogil
def num_instants_of_node(rows: UsageRows, i: int) -> int:
    """Number of instants in a node's rows: the cost of checking them."""
    total = 0
    for r in range(rows.begin[i], rows.begin[i + 1]):
        total += rows.stop[r] - rows.start[r]
    return total


@compiled_nogil
def update_memory(state: AssignmentState, rows: UsageRows, i: int, new: int) -> None:
    """Update memory for node i with another value, whether it fits or not."""
    for r in range(rows.begin[i], rows.begin[i + 1]):
        amount = extra_bytes(rows, r, state.x[i], new)
        if amount != 0.0:
            add_to_instants(state.filled, rows.start[r], rows.stop[r], amount)


@compiled_nogil
def update_memory_if_fits(state: AssignmentState, rows: UsageRows, limit: float, i: int, new: int) -> bool:
    """``update_memory``, undone and False if an instant that gets fuller exceeds the limit."""
    old = state.x[i]
    update_memory(state, rows, i, new)
    for r in range(rows.begin[i], rows.begin[i + 1]):
        if extra_bytes(rows, r, old, new) > 0.0 and max_filled(state.filled, rows.start[r], rows.stop[r]) > limit:
            for back in range(rows.begin[i], rows.begin[i + 1]):
                amount = extra_bytes(rows, back, new, old)
                if amount != 0.0:
                    add_to_instants(state.filled, rows.start[back], rows.stop[back], amount)
            return False
    return True


@compiled_nogil
def assign(state: AssignmentState, links: ArcArrays, i: int, new: int) -> int:
    """Set node i to another value, whose memory is already accounted for. Returns the entries touched."""
    old = state.x[i]
    state.total[0] += state.gains[links.first[i] + new] - state.gains[links.first[i] + old]
    state.x[i] = new
    touched = 1
    for k in range(links.begin[i], links.begin[i + 1]):
        j = links.other[k]
        low, size = links.first[j], links.first[j + 1] - links.first[j]
        gained, lost = links.place[k] + new * size, links.place[k] + old * size
        touched += size
        for other in range(size):
            state.gains[low + other] += links.tables[gained + other] - links.tables[lost + other]
    return touched
