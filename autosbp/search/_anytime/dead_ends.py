"""Values that no optimum needs: another of the same node uses no more memory and costs no more, whatever its neighbours take
(dead-end elimination; Goldstein 1994)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autosbp.search._anytime.compiled import compiled
from autosbp.search._anytime.network import Links, Network, Rows
from autosbp.search._anytime.problem import FORBIDDEN, Floats, Ints


def needed_values(network: Network) -> list[Ints]:
    """Of each node, those that remain; one at least."""
    alive = np.ones(len(network.costs), dtype=bool)
    while _remove(alive, network.costs, network.links, network.rows, FORBIDDEN):
        pass
    first = network.links.first
    return [np.flatnonzero(alive[first[i] : first[i + 1]]) for i in range(network.num_nodes)]


@compiled
def _remove(alive: NDArray[np.bool_], costs: Floats, links: Links, rows: Rows, hopeless: float) -> int:
    """One turn over all nodes. Returns how many values it removed."""
    removed = 0
    for i in range(len(links.first) - 1):
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
                if leaner and _saved(alive, costs, links, i, value, other, hopeless) >= 0.0:
                    alive[low + value] = False
                    removed += 1
                    break
    return removed


@compiled
def _saved(
    alive: NDArray[np.bool_], costs: Floats, links: Links, i: int, value: int, other: int, hopeless: float
) -> float:
    """What ``other`` saves at least over ``value``."""
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
