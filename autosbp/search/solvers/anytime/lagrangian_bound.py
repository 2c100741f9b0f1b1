"""Lower bound on all assignments, and Lagrange multipliers of memory.

Memory limits are relaxed: a byte at instant t costs ``prices[t] >= 0``. Tree-reweighted messages
(``solvers.trws_passes``) bound the rest. The multipliers of instants that were the fullest at least once follow a
subgradient (Polyak's step, towards the best cost known)."""

from __future__ import annotations

import numpy as np

from autosbp.search.solvers.anytime.cost_network import ArcArrays, CostNetwork, UsageRows
from autosbp.search.solvers.anytime.interval_problem import Floats, Ints
from autosbp.search.solvers.numba_functions import compiled_nogil
from autosbp.search.solvers.trws_passes import PassRunner

TURNS = 3
"""Pairs of passes between changes of multipliers."""
PATIENCE = 15
"""Changes without a better bound after which steps shrink and restart from the best multipliers."""
SHRINK, SMALLEST = 0.7, 0.01
SHARE = 0.3
"""Fraction of Polyak's step."""
GRAIN = 2.0**-900
"""Rounding of messages: so fine that none is rounded."""


class PricedBound:
    """Lagrangian bound with subgradient steps on the multipliers of memory.

    ``improve`` raises ``bound``, which belongs to the best ``prices``. ``active`` are the instants with multipliers."""

    def __init__(self, network: CostNetwork) -> None:
        links = network.links
        self.network = network
        self.bound = -np.inf
        self.prices = np.zeros(len(network.base))
        self._current = self.prices.copy()
        self._costs = network.costs.copy()
        self.active: list[int] = []
        self._step, self._since = 1.0, 0
        self.count = 0
        into, back = links.into[:-1], links.back
        arcs = np.stack([links.other, links.place, links.place[back], into, into[back]], axis=1)
        self._passes = PassRunner(links.first, links.begin, arcs, links.tables, lambda: None)
        self.work = 4 * network.num_entries * TURNS

    def improve(self, cost: float) -> None:
        """Change the multipliers once; ``cost`` is the best known."""
        network = self.network
        self.count += 1
        value = self._value(self._current, TURNS)
        if value > self.bound + 1e-6 * abs(self.bound) or self.bound == -np.inf:
            self.bound, self.prices, self._since = value, self._current.copy(), 0
        else:
            self.bound = max(self.bound, value)
            self._since += 1
        if not len(network.base):
            return
        over = (network.filled(self._passes.values) - network.limit) / max(network.limit, 1.0)
        worst = int(over.argmax())
        if over[worst] > 0.0 and worst not in self.active:
            self.active.append(worst)
        if not self.active:
            return
        if self._since > PATIENCE:
            self._step, self._since = max(SHRINK * self._step, SMALLEST), 0
            self._current = self.prices.copy()
        slope = over[self.active]
        length = SHARE * self._step * max(cost - value, 1.0) / max(float(slope @ slope), 1e-12)
        moved = self._current[self.active] + length * slope / max(network.limit, 1.0)
        self._current = self._current.copy()
        self._current[self.active] = np.maximum(moved, 0.0)

    def decode(self, turns: int) -> Ints:
        """An assignment at the best multipliers, after ``turns`` more passes."""
        self.bound = max(self.bound, self._value(self.prices, turns))
        return self._passes.values.copy()

    def _value(self, prices: Floats, turns: int) -> float:
        network = self.network
        priced = np.concatenate([[0.0], np.cumsum(prices)])
        price_costs(self._costs, network.costs, priced, network.links, network.rows)
        value = -np.inf
        for _ in range(turns):
            self._passes.forward(self._costs, GRAIN)
            value = self._passes.backward(self._costs, GRAIN)[0]
        return value + float(prices @ (network.base - network.limit)) if len(prices) else value


@compiled_nogil
def price_costs(out: Floats, costs: Floats, priced: Floats, links: ArcArrays, rows: UsageRows) -> None:
    """Write the costs of values, with their penalised memory, into ``out``."""
    out[:] = costs
    for i in range(len(links.first) - 1):
        for r in range(rows.begin[i], rows.begin[i + 1]):
            price = priced[rows.stop[r]] - priced[rows.start[r]]
            if price != 0.0:
                for value in range(links.first[i + 1] - links.first[i]):
                    out[links.first[i] + value] += price * rows.used[rows.place[r] + value]
