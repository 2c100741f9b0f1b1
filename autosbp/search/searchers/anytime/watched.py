"""The instants at which moves look at memory. Thousands have a limit, few ever come near it; what turns out to exceed it is
added."""

from __future__ import annotations

import numpy as np

from autosbp.search.searchers.anytime.network import Network
from autosbp.search.searchers.anytime.problem import Ints

ALL, WINDOWS = 400, 128
"""So many are all watched; of more, the one of each window where most can be used."""
AT_ONCE = 16


class Watched:
    """Grows."""

    def __init__(self, network: Network) -> None:
        count = len(network.base)
        if count <= ALL:
            self.instants = np.arange(count)
            return
        greatest = (
            np.maximum.reduceat(network.rows.used, network.rows.place) if len(network.rows.place) else np.zeros(0)
        )
        change = np.bincount(network.rows.start, greatest, count + 1) - np.bincount(
            network.rows.stop, greatest, count + 1
        )
        most = network.base + np.cumsum(change)[:-1]
        parts = np.array_split(np.arange(count), WINDOWS)
        self.instants = np.array([int(part[most[part].argmax()]) for part in parts])

    def add(self, instants: Ints) -> None:
        self.instants = np.union1d(self.instants, instants)


def exceeded(network: Network, x: Ints) -> Ints:
    """The instants, away from each other, that an assignment fills most beyond the limit."""
    over = network.filled(x) - network.limit
    apart = max(1, len(over) // 200)
    found: list[int] = []
    while len(found) < AT_ONCE and len(over) and over.max() > 0.0:
        worst = int(over.argmax())
        found.append(worst)
        over[max(0, worst - apart + 1) : worst + apart] = -np.inf
    return np.array(found, dtype=np.int64)
