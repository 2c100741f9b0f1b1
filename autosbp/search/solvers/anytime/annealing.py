"""One annealing run: single and tree moves at a temperature; moves check memory at few instants, results at all."""

from __future__ import annotations

import numpy as np

from autosbp.search.solvers.anytime.active_memory_constraints import exceeded_instants
from autosbp.search.solvers.anytime.assignment import state_of
from autosbp.search.solvers.anytime.cost_network import CostNetwork
from autosbp.search.solvers.anytime.interval_problem import Floats, Ints
from autosbp.search.solvers.anytime.single_moves import anneal, reduce_memory
from autosbp.search.solvers.anytime.tree_moves import move_trees, scratch_of

TREE_MOVES_RANGE = 20, 100
"""Fewest and most tree moves of a step."""


class Annealing:
    """Annealing from a fitting assignment, with ``flips`` single moves per tree move.

    ``best_x`` fits at all instants, and costs ``best``."""

    def __init__(self, network: CostNetwork, instants: Ints, free: Ints, x: Ints, prices: Floats, flips: int) -> None:
        self.network, self.free, self._prices = network, free, prices
        self._flips = flips
        self._scratch = scratch_of(network)
        self._trees = int(np.clip(len(free) // 8, *TREE_MOVES_RANGE))
        self._stamp = 1
        self._watch(instants, x)
        self.best_x, self.best = x.copy(), float(self._state.total[0])
        self._least = self._state.total.copy()

    def step(self, temperature: float, seed: int) -> int:
        """Run some moves. Returns the entries touched."""
        some, found, state = self._watched_network, self.best_x.copy(), self._state
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
            missed = exceeded_instants(self.network, found)
            if len(missed):
                self._watch(np.union1d(self.instants, missed), state.x)
                self._least[0] = self.best
            else:
                self.best_x, self.best = found, float(self._least[0])
        return touched

    def _watch(self, instants: Ints, x: Ints) -> None:
        """Watch these instants; if the limit is exceeded there, make room, or return to the best assignment."""
        self.instants = instants
        some = self._watched_network = self.network.at(instants)
        # An unwatched instant's multiplier goes to the next watched one.
        there = np.minimum(np.searchsorted(instants, np.arange(len(self._prices))), len(instants) - 1)
        prices = np.bincount(there, self._prices, len(instants)) if len(instants) else np.zeros(0)
        self._priced = np.concatenate([[0.0], np.cumsum(prices)])
        self._state = state_of(some, x)
        if len(instants) and self._state.filled.max() > some.limit:
            moves = 20 * len(self.free)
            if not reduce_memory(self._state, some.links, some.rows, some.limit, self.free, moves):
                self._state = state_of(some, self.best_x)
