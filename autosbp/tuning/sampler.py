"""The guided sampler: random points of a ``StrategySpace``, and mutations of points that did well.

Guided means that a point names only what the search problem does not decide: layouts are the cheapest ones for the
point, up to its perturbations. So are the paper's constraints (AutoDist section 2.4) met by construction: the buckets
of gradients are filled evenly, and small parameters are split only where that pays.
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
"""Share of random points with the cheapest layouts."""
DEFAULT_SYNC_SHARE = 0.5
"""Share of random points whose gradients are reduced in plain buckets."""
LAYOUT_MUTATION_SHARE = 0.5
"""Share of mutations that change the layouts, not a named choice."""
MAX_ATTEMPTS = 40
"""Points tried per candidate, of which many are infeasible or known strategies."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A strategy to try.

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
    """Random feasible strategies of a space. Points are solved once."""

    def __init__(self, space: StrategySpace) -> None:
        self.space = space
        self._solved: dict[Choices, Candidate | None] = {}

    def sample(
        self, count: int, rng: Random, known: set[str], parents: Sequence[Choices] = (), mutated_share: float = 0.0
    ) -> list[Proposal]:
        """Up to ``count`` different strategies; fewer if many attempts find no new one.

        Args:
            known: ids of strategies that do not count as new; gets those of the result.
            parents: points to mutate.
            mutated_share: share of mutations, if there are parents.
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
        """A point that differs in one named choice, or in one perturbation of the layouts."""
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
