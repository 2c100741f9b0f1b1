"""A bound on all assignments, and prices of memory.

Memory limits are relaxed: a byte at instant t costs ``prices[t] >= 0``. What remains is bounded by tree-reweighted message
passing in sequence (TRW-S; Kolmogorov 2006): nodes in a fixed order hand on what they cost, forward and backward in turn.
Prices of the instants that were ever the fullest follow a subgradient (Polyak's step, towards the best cost known).
"""

from __future__ import annotations

import numpy as np

from autosbp.search.searchers.anytime.network import Links, Network, Rows
from autosbp.search.searchers.anytime.problem import Floats, Ints
from autosbp.search.searchers.compiled import compiled

TURNS = 3
"""Pairs of passes between changes of prices."""
PATIENCE = 15
"""Changes without a better bound, after which steps get smaller and begin at the best prices again."""
SHRINK, SMALLEST = 0.7, 0.01
SHARE = 0.3
"""Of Polyak's step."""


class Bound:
    """``improve`` raises ``bound``, which is that of the best ``prices``; ``active`` are the instants with prices."""

    def __init__(self, network: Network) -> None:
        links = network.links
        self.network = network
        self.messages = np.zeros(int(links.into[-1]))
        self.bound = -np.inf
        self.prices = np.zeros(len(network.base))
        self.decoded = np.zeros(network.num_nodes, dtype=np.int64)
        self._current = self.prices.copy()
        self._costs = network.costs.copy()
        self.active: list[int] = []
        self._step, self._since = 1.0, 0
        self.count = 0
        owner = np.repeat(np.arange(network.num_nodes), np.diff(links.begin))
        behind = np.bincount(owner[links.other > owner], minlength=network.num_nodes)
        ahead = np.bincount(owner[links.other < owner], minlength=network.num_nodes)
        self._share = 1.0 / np.maximum(np.maximum(behind, ahead), 1)
        self._buffer = np.zeros(int(network.num_values.max(initial=1)))
        self.work = 4 * network.num_entries * TURNS

    def improve(self, cost: float) -> None:
        """One change of prices; ``cost`` is the best known."""
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
        over = (network.filled(self.decoded) - network.limit) / max(network.limit, 1.0)
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
        """An assignment at the best prices, after more passes."""
        self.bound = max(self.bound, self._value(self.prices, turns))
        return self.decoded.copy()

    def _value(self, prices: Floats, turns: int) -> float:
        network = self.network
        priced = np.concatenate([[0.0], np.cumsum(prices)])
        price_costs(self._costs, network.costs, priced, network.links, network.rows)
        value = -np.inf
        for _ in range(turns):
            for forward in (True, False):
                value = hand_on(
                    self._costs, self.messages, network.links, self._share, self.decoded, self._buffer, forward
                )
        return value + float(prices @ (network.base - network.limit)) if len(prices) else value


@compiled
def price_costs(out: Floats, costs: Floats, priced: Floats, links: Links, rows: Rows) -> None:
    """Costs of values with what their memory costs."""
    out[:] = costs
    for i in range(len(links.first) - 1):
        for r in range(rows.begin[i], rows.begin[i + 1]):
            price = priced[rows.stop[r]] - priced[rows.start[r]]
            if price != 0.0:
                for value in range(links.first[i + 1] - links.first[i]):
                    out[links.first[i] + value] += price * rows.used[rows.place[r] + value]


@compiled
def hand_on(
    costs: Floats, messages: Floats, links: Links, share: Floats, decoded: Ints, buffer: Floats, forward: bool
) -> float:
    """One pass; returns the bound that a backward one proves. A forward pass chooses values on its way."""
    bound = 0.0
    count = len(links.first) - 1
    for turn in range(count):
        i = turn if forward else count - 1 - turn
        low, size = links.first[i], links.first[i + 1] - links.first[i]
        if forward:
            decoded[i] = _decode(costs, messages, links, decoded, i)
        for value in range(size):
            buffer[value] = costs[low + value]
        for k in range(links.begin[i], links.begin[i + 1]):
            into = links.into[k]
            for value in range(size):
                buffer[value] += messages[into + value]
        least = np.inf
        for value in range(size):
            least = min(least, buffer[value])
        bound += least
        for value in range(size):
            buffer[value] -= least
        for k in range(links.begin[i], links.begin[i + 1]):
            j = links.other[k]
            if (j > i) == forward:
                choices = links.first[j + 1] - links.first[j]
                out, into, table = links.into[links.back[k]], links.into[k], links.place[k]
                for other in range(choices):
                    messages[out + other] = np.inf
                for value in range(size):
                    base = share[i] * buffer[value] - messages[into + value]
                    for other in range(choices):
                        cost = base + links.tables[table + value * choices + other]
                        if cost < messages[out + other]:
                            messages[out + other] = cost
                least = np.inf
                for other in range(choices):
                    least = min(least, messages[out + other])
                bound += least
                for other in range(choices):
                    messages[out + other] -= least
    return bound


@compiled
def _decode(costs: Floats, messages: Floats, links: Links, decoded: Ints, i: int) -> int:
    """The cheapest value, given those before it and what those behind hand on."""
    low = links.first[i]
    least, chosen = np.inf, 0
    for value in range(links.first[i + 1] - low):
        cost = costs[low + value]
        for k in range(links.begin[i], links.begin[i + 1]):
            j = links.other[k]
            if j < i:
                choices = links.first[j + 1] - links.first[j]
                cost += links.tables[links.place[k] + value * choices + decoded[j]]
            else:
                cost += messages[links.into[k] + value]
        if cost < least:
            least, chosen = cost, value
    return chosen
