"""An assignment with what changes of it cost, kept up to date move by move."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autosbp.search.searchers.anytime.network import Links, Network, Rows
from autosbp.search.searchers.anytime.problem import Floats, Ints
from autosbp.search.searchers.compiled import compiled, reassociated

TINY = 0.5
"""Costs that differ by less are the same: they are integers, or scaled so that this is rounding."""


class State(NamedTuple):
    """``gains[first[i] + value]`` is what node i costs with each value, its edges included; ``filled`` the bytes used at each
    instant; ``total[0]`` the cost."""

    x: Ints
    gains: Floats
    filled: Floats
    total: Floats


def state_of(network: Network, x: Ints) -> State:
    """Of an assignment, which is copied."""
    state = State(x.copy(), np.empty(len(network.costs)), np.empty(len(network.base)), np.zeros(1))
    refresh(state, network.costs, network.base, network.links, network.rows)
    return state


@compiled
def refresh(state: State, costs: Floats, base: Floats, links: Links, rows: Rows) -> None:
    """Everything anew from ``state.x``."""
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
            add(state.filled, rows.start[r], rows.stop[r], rows.used[rows.place[r] + value])
    state.total[0] = total


@reassociated
def fullest(filled: Floats, start: int, stop: int) -> float:
    """The greatest of some instants."""
    most: float = filled[start]
    for at in range(start + 1, stop):
        if filled[at] > most:
            most = filled[at]
    return most


@reassociated
def add(filled: Floats, start: int, stop: int, amount: float) -> None:
    """To some instants."""
    for at in range(start, stop):
        filled[at] += amount


@compiled
def more(rows: Rows, r: int, old: int, new: int) -> float:
    """What a row uses more with another value."""
    amount: float = rows.used[rows.place[r] + new] - rows.used[rows.place[r] + old]
    return amount


@compiled
def extent(rows: Rows, i: int) -> int:
    """Instants of a node's rows: what a look at them costs."""
    total = 0
    for r in range(rows.begin[i], rows.begin[i + 1]):
        total += rows.stop[r] - rows.start[r]
    return total


@compiled
def refill(state: State, rows: Rows, i: int, new: int) -> None:
    """Memory of node i with another value, whether it fits or not."""
    for r in range(rows.begin[i], rows.begin[i + 1]):
        amount = more(rows, r, state.x[i], new)
        if amount != 0.0:
            add(state.filled, rows.start[r], rows.stop[r], amount)


@compiled
def refill_if_fits(state: State, rows: Rows, limit: float, i: int, new: int) -> bool:
    """The same, undone where an instant that gets fuller exceeds the limit."""
    old = state.x[i]
    refill(state, rows, i, new)
    for r in range(rows.begin[i], rows.begin[i + 1]):
        if more(rows, r, old, new) > 0.0 and fullest(state.filled, rows.start[r], rows.stop[r]) > limit:
            for back in range(rows.begin[i], rows.begin[i + 1]):
                amount = more(rows, back, new, old)
                if amount != 0.0:
                    add(state.filled, rows.start[back], rows.stop[back], amount)
            return False
    return True


@compiled
def assign(state: State, links: Links, i: int, new: int) -> int:
    """Node i takes another value; its memory is accounted for already. Returns the entries touched."""
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
