"""Dead-end elimination (Goldstein 1994): removes values that no optimum needs.

Another value of the same node uses no more memory and costs no more, whatever its neighbours take."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from autosbp.search.solvers.anytime.cost_network import ArcArrays, CostNetwork, UsageRows
from autosbp.search.solvers.anytime.interval_problem import FORBIDDEN, Floats, Ints
from autosbp.search.solvers.numba_functions import compiled_nogil

DIFFERENCES_BETWEEN_CHECKS = 1e8
"""Cost differences between two checks of the clock."""


def needed_values(network: CostNetwork, should_stop: Callable[[], bool] = lambda: False) -> list[Ints]:
    """The values of each node that remain, at least one; more than necessary if it had to stop."""
    alive = np.ones(len(network.costs), dtype=bool)
    first, links = network.links.first, network.links
    sizes = np.diff(first)
    around = np.add.reduceat(np.append(sizes[links.other], 0), links.begin[:-1]) * (np.diff(links.begin) > 0)
    parts = np.cumsum(sizes.astype(np.float64) ** 2 * (1 + around)) // DIFFERENCES_BETWEEN_CHECKS
    ends = [*np.flatnonzero(np.diff(parts)) + 1, len(sizes)]
    removed = 1
    while removed and not should_stop():
        removed, begin = 0, 0
        for end in ends:
            if should_stop():
                break
            removed += _remove(alive, network.costs, links, network.rows, FORBIDDEN, begin, end)
            begin = end
    return [np.flatnonzero(alive[first[i] : first[i + 1]]) for i in range(network.num_nodes)]


@compiled_nogil
def _remove(
    alive: NDArray[np.bool_], costs: Floats, links: ArcArrays, rows: UsageRows, hopeless: float, begin: int, end: int
) -> int:
    """One turn over some nodes. Returns the number of values removed."""
    removed = 0
    for i in range(begin, end):
        low, size = links.first[i], links.first[i + 1] - links.first[i]
        for value in range(size):
            if not alive[low + value]:
                continue
            for other in range(size):
                if other == value or not alive[low + other]:
                    continue
                leaner = True
                for r in range(rows.begin[i], rows.begin[i + 1]):
                    if rows.used[rows.place[r] + other] > rows.used[rows.place[r] + value]:
                        leaner = False
                        break
                if leaner and _least_saving(alive, costs, links, i, value, other, hopeless) >= 0.0:
                    alive[low + value] = False
                    removed += 1
                    break
    return removed


@compiled_nogil
def _least_saving(
    alive: NDArray[np.bool_], costs: Floats, links: ArcArrays, i: int, value: int, other: int, hopeless: float
) -> float:
    """Least saving of ``other`` over ``value``."""
    low = links.first[i]
    saved: float = costs[low + value] - costs[low + other]
    for k in range(links.begin[i], links.begin[i + 1]):
        j = links.other[k]
        there, size = links.first[j], links.first[j + 1] - links.first[j]
        mine, its = links.place[k] + value * size, links.place[k] + other * size
        least = np.inf
        for choice in range(size):
            if alive[there + choice]:
                least = min(least, links.tables[mine + choice] - links.tables[its + choice])
        saved += least
        if saved < -hopeless:
            break
    return saved
