"""Instants at which moves check memory.

Thousands of instants have a limit, but few ever come close to it. Instants that turn out to exceed it are added."""

from __future__ import annotations

import numpy as np

from autosbp.search.solvers.anytime.cost_network import CostNetwork
from autosbp.search.solvers.anytime.interval_problem import Ints

MAX_ALL_WATCHED, WINDOWS = 400, 128
"""Up to this number, all instants are watched; above, the one of each window where most can be used."""
AT_ONCE = 16


class ActiveConstraints:
    """Growing set of watched instants."""

    def __init__(self, network: CostNetwork) -> None:
        count = len(network.base)
        if count <= MAX_ALL_WATCHED:
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


def exceeded_instants(network: CostNetwork, x: Ints) -> Ints:
    """Instants, spaced apart, at which an assignment exceeds the limit most."""
    over = network.filled(x) - network.limit
    apart = max(1, len(over) // 200)
    found: list[int] = []
    while len(found) < AT_ONCE and len(over) and over.max() > 0.0:
        worst = int(over.argmax())
        found.append(worst)
        over[max(0, worst - apart + 1) : worst + apart] = -np.inf
    return np.array(found, dtype=np.int64)
