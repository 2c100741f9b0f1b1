"""The guided sampler: random points of a ``StrategySpace``, and mutations of the points of fast strategies.

Guided means that layouts are not sampled: they are the cheapest ones for the point's choices and perturbations. This
also satisfies the constraints of AutoDist's sampler (section 2.4) by construction: gradient buckets are filled evenly, and
small parameters are split only where that is faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from autosbp.search.branch_and_bound.candidate import Candidate
from autosbp.tuning.strategy_space import NUM_PERTURBATIONS, Choices, StrategySpace
from autosbp.tuning.sync_choices import DEFAULT_SYNC
from autosbp.tuning.trial_store import strategy_id

UNPERTURBED_SHARE = 0.5
"""Share of random points without perturbations."""
DEFAULT_SYNC_SHARE = 0.5
"""Share of random points whose gradients are all-reduced in default buckets."""
LAYOUT_MUTATION_SHARE = 0.5
"""Share of mutations that change the perturbations of layouts, not another choice."""
MAX_ATTEMPTS = 40
"""Maximum number of points drawn per requested strategy; many are infeasible or give known strategies."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A strategy to measure.

    Args:
        origin, choices, score: see ``trial_store.Trial``.
        candidate: the strategy with its predicted costs.
    """

    origin: str
    candidate: Candidate
    choices: Choices | None = None
    score: float | None = None

    @property
    def strategy_id(self) -> str:
        return strategy_id(self.candidate.strategy.to_dict())


class Sampler:
    """Samples feasible strategies of a space. The strategy of each point is computed once and kept."""

    def __init__(self, space: StrategySpace) -> None:
        self.space = space
        self._solved: dict[Choices, Candidate | None] = {}

    def sample(
        self, count: int, rng: Random, known: set[str], parents: Sequence[Choices] = (), mutated_share: float = 0.0
    ) -> list[Proposal]:
        """Up to ``count`` new strategies; fewer if ``MAX_ATTEMPTS`` points for each do not give enough.

        Args:
            count: number of strategies.
            rng: source of randomness.
            known: ids of strategies that are not new; the ids of the returned ones are added.
            parents: points to mutate.
            mutated_share: share of mutations, if there are parents; the rest are random points.
        """
        found: list[Proposal] = []
        for _ in range(MAX_ATTEMPTS * count):
            if len(found) == count:
                break
            mutates = parents and rng.random() < mutated_share
            choices = self.mutation(rng.choice(parents), rng) if mutates else self.point(rng)
            candidate = self.solve(choices)
            if candidate is None:
                continue
            proposal = Proposal("mutated" if mutates else "sampled", candidate, choices)
            if proposal.strategy_id not in known:
                known.add(proposal.strategy_id)
                found.append(proposal)
        return found

    def solve(self, choices: Choices) -> Candidate | None:
        """The strategy of a point; None if it is infeasible."""
        if choices not in self._solved:
            self._solved[choices] = self.space.candidate(choices)
        return self._solved[choices]

    def point(self, rng: Random) -> Choices:
        """A random point."""
        seeds = () if rng.random() < UNPERTURBED_SHARE else (rng.randrange(NUM_PERTURBATIONS),)
        found = {name: rng.choice(values) for name, values in self.space.domains.items()}
        if rng.random() < DEFAULT_SYNC_SHARE:
            found["sync"] = DEFAULT_SYNC
        return Choices(**found, perturbations=seeds)

    def mutation(self, parent: Choices, rng: Random) -> Choices:
        """A point that differs from ``parent`` in one choice or in one perturbation."""
        changes = list(_other_values(self.space.domains, parent))
        if not changes or rng.random() < LAYOUT_MUTATION_SHARE:
            seeds = parent.perturbations
            if seeds and rng.random() < 0.5:
                dropped = rng.randrange(len(seeds))
                return replace(parent, perturbations=seeds[:dropped] + seeds[dropped + 1 :])
            return replace(parent, perturbations=(*seeds, rng.randrange(NUM_PERTURBATIONS)))
        name, values = rng.choice(changes)
        change: dict[str, Any] = {name: rng.choice(values)}
        return replace(parent, **change)


def _other_values(domains: Mapping[str, Sequence[Any]], parent: Choices) -> Iterator[tuple[str, list[Any]]]:
    for name, values in domains.items():
        others = [value for value in values if value != getattr(parent, name)]
        if others:
            yield name, others
