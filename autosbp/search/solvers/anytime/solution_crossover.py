"""Crossover of good assignments: a small problem over their values, and cheap alternatives, solved by branch and bound."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autosbp.search.solvers.anytime.assignment import state_of
from autosbp.search.solvers.anytime.cost_network import CostNetwork, lay_out
from autosbp.search.solvers.anytime.interval_problem import Floats, IntervalProblem, Ints
from autosbp.search.solvers.anytime.lagrangian_bound import price_costs
from autosbp.search.solvers.anytime.milp import prove
from autosbp.search.solvers.anytime.node_contraction import restricted, with_tables_folded

MOST_ENTRIES, SECONDS = 8_000, 3.0
"""Limits of one branch and bound: table entries, and seconds."""
EXTRA_VALUES = 6, 4, 3, 2, 1, 0
"""Numbers of cheap values per node to add to those of the assignments, tried until the entries are few enough."""
NOISE_RANGE = 0.5, 1.5
"""Range of random factors on a value's extra cost, so that another crossover takes other values."""


@dataclass(frozen=True)
class CrossoverProblem:
    """A small problem; ``kept[i]`` are the values of node i in it."""

    network: CostNetwork
    kept: Sequence[Ints]

    def best(self, cost: float, deadline: float) -> Ints | None:
        """The optimum; None if time is too short, or nothing costs less than ``cost``."""
        proof = prove(self.network, cost, min(deadline, time.monotonic() + SECONDS))
        if proof.x is None:
            return None
        return np.array([kept[value] for kept, value in zip(self.kept, proof.x.tolist(), strict=True)], dtype=np.int64)


def merged_problem(
    problem: IntervalProblem, network: CostNetwork, found: Sequence[Ints], prices: Floats, seed: int
) -> CrossoverProblem | None:
    """The problem over the values of assignments, the best first; None if these alone are too many."""
    regrets = _regrets(network, found[0], prices) * np.random.default_rng(seed).uniform(
        *NOISE_RANGE, len(network.costs)
    )
    first = network.links.first
    ranked = [np.argsort(regrets[low:high], kind="stable") for low, high in zip(first[:-1], first[1:], strict=True)]
    own = [np.unique(values) for values in np.stack(found, axis=1)]
    for more in EXTRA_VALUES:
        kept = [np.union1d(values, cheap[:more]) for values, cheap in zip(own, ranked, strict=True)]
        small = lay_out(with_tables_folded(restricted(problem, kept)))
        if small.num_entries <= MOST_ENTRIES:
            return CrossoverProblem(small, kept)
    return None


def _regrets(network: CostNetwork, x: Ints, prices: Floats) -> Floats:
    """Extra cost of each value over its node's cheapest, with penalised memory, all other nodes unchanged."""
    priced, gains = np.concatenate([[0.0], np.cumsum(prices)]), np.empty(len(network.costs))
    price_costs(gains, state_of(network, x).gains, priced, network.links, network.rows)
    least = np.repeat(np.minimum.reduceat(gains, network.links.first[:-1]), network.num_values)
    regrets: Floats = gains - least
    return regrets
