"""The best of all assignments whose values occur in some good ones, or are cheap beside the best: a small problem, solved by
branch and bound."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autosbp.search.searchers.anytime.bound import price_costs
from autosbp.search.searchers.anytime.contract import folded, restricted
from autosbp.search.searchers.anytime.network import Network, lay_out
from autosbp.search.searchers.anytime.problem import Floats, IntervalProblem, Ints
from autosbp.search.searchers.anytime.proof import prove
from autosbp.search.searchers.anytime.state import state_of

MOST_ENTRIES, SECONDS = 8_000, 3.0
"""Of tables; for one branch and bound."""
MORE = 6, 4, 3, 2, 1, 0
"""Cheap values of each node beside those of the assignments: as many as make few enough entries."""
NOISE = 0.5, 1.5
"""Factors of what a value costs more, so that another merge takes others."""


@dataclass(frozen=True)
class Merged:
    """``kept[i]`` are the values of node i that remain."""

    network: Network
    kept: Sequence[Ints]

    def best(self, cost: float, deadline: float) -> Ints | None:
        """The optimum; None where time is too short, or nothing costs less than ``cost``."""
        proof = prove(self.network, cost, min(deadline, time.monotonic() + SECONDS))
        if proof.x is None:
            return None
        return np.array([kept[value] for kept, value in zip(self.kept, proof.x.tolist(), strict=True)], dtype=np.int64)


def merged_problem(
    problem: IntervalProblem, network: Network, found: Sequence[Ints], prices: Floats, seed: int
) -> Merged | None:
    """Of assignments, the best first; None where even their own values are too many."""
    regrets = _regrets(network, found[0], prices) * np.random.default_rng(seed).uniform(*NOISE, len(network.costs))
    first = network.links.first
    ranked = [np.argsort(regrets[low:high], kind="stable") for low, high in zip(first[:-1], first[1:], strict=True)]
    own = [np.unique(values) for values in np.stack(found, axis=1)]
    for more in MORE:
        kept = [np.union1d(values, cheap[:more]) for values, cheap in zip(own, ranked, strict=True)]
        small = lay_out(folded(restricted(problem, kept)))
        if small.num_entries <= MOST_ENTRIES:
            return Merged(small, kept)
    return None


def _regrets(network: Network, x: Ints, prices: Floats) -> Floats:
    """What each value costs more than its node's cheapest, memory at its prices, all else as it is."""
    priced, gains = np.concatenate([[0.0], np.cumsum(prices)]), np.empty(len(network.costs))
    price_costs(gains, state_of(network, x).gains, priced, network.links, network.rows)
    least = np.repeat(np.minimum.reduceat(gains, network.links.first[:-1]), network.num_values)
    regrets: Floats = gains - least
    return regrets
