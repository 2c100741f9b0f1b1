"""One annealing: single moves and trees at a temperature, with memory watched at few instants and checked at all."""

from __future__ import annotations

import numpy as np

from autosbp.search.searchers.anytime.anneal import anneal, make_room
from autosbp.search.searchers.anytime.network import Network
from autosbp.search.searchers.anytime.problem import Floats, Ints
from autosbp.search.searchers.anytime.state import state_of
from autosbp.search.searchers.anytime.trees import move_trees, scratch_of
from autosbp.search.searchers.anytime.watched import exceeded

TREES = 20, 100
"""Of a step."""


class Annealing:
    """From an assignment that fits, with so many single ``flips`` for each tree. ``best_x`` fits at all instants, and costs
    ``best``."""

    def __init__(self, network: Network, instants: Ints, free: Ints, x: Ints, prices: Floats, flips: int) -> None:
        self.network, self.free, self._prices = network, free, prices
        self._flips = flips
        self._scratch = scratch_of(network)
        self._trees = int(np.clip(len(free) // 8, *TREES))
        self._stamp = 1
        self._watch(instants, x)
        self.best_x, self.best = x.copy(), float(self._state.total[0])
        self._least = self._state.total.copy()

    def step(self, temperature: float, seed: int) -> int:
        """Some moves. Returns the entries touched."""
        some, found, state = self._some, self.best_x.copy(), self._state
        touched = anneal(
            state, self._least, found, some.links, some.rows, some.limit,
            self.free, self._flips * self._trees, temperature, seed,
        )  # fmt: skip
        touched += move_trees(
            state, self._least, found, some.links, some.rows, some.limit, self._scratch,
            self.free, self._trees, temperature, self._priced, self._stamp, seed + 1,
        )  # fmt: skip
        self._stamp += self._trees
        if self._least[0] < self.best:
            missed = exceeded(self.network, found)
            if len(missed):
                self._watch(np.union1d(self.instants, missed), state.x)
                self._least[0] = self.best
            else:
                self.best_x, self.best = found, float(self._least[0])
        return touched

    def _watch(self, instants: Ints, x: Ints) -> None:
        """Look at these instants; what exceeds the limit there makes room, or all goes back to the best."""
        self.instants = instants
        some = self._some = self.network.at(instants)
        # The price of an instant goes to the next one that is watched.
        there = np.minimum(np.searchsorted(instants, np.arange(len(self._prices))), len(instants) - 1)
        prices = np.bincount(there, self._prices, len(instants)) if len(instants) else np.zeros(0)
        self._priced = np.concatenate([[0.0], np.cumsum(prices)])
        self._state = state_of(some, x)
        if len(instants) and self._state.filled.max() > some.limit:
            moves = 20 * len(self.free)
            if not make_room(self._state, some.links, some.rows, some.limit, self.free, moves):
                self._state = state_of(some, self.best_x)
