"""Guided random search: Algorithm 1 of AutoDist without its simulator (``Random+G`` in its section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from autosbp.tuning.proposers._base import known_strategies
from autosbp.tuning.sampler import Proposal, Sampler
from autosbp.tuning.trial_store import Trial


class RandomProposer:
    """Proposes random points of the space."""

    def __init__(self, sampler: Sampler, seed: int = 0) -> None:
        self.sampler, self.seed = sampler, seed

    def propose(self, count: int, trials: Sequence[Trial]) -> list[Proposal]:
        rng = Random(f"random {self.seed} {len(trials)}")
        return self.sampler.sample(count, rng, known_strategies(trials))
