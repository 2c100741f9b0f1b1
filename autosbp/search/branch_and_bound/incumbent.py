"""The incumbent (best known strategy), and other strategies that are kept."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from autosbp.plan.plan import Strategy
from autosbp.search.branch_and_bound.candidate import INFINITE, ROUNDING, Candidate, step_s

NUM_FASTEST = 3
"""Number of strategies that are tried with other bucket sizes."""


@dataclass
class Incumbent:
    """Strategies that a search has found.

    Args:
        best: the fastest.
        near: the ``NUM_FASTEST`` fastest, all different.
        recomputing: the fastest checkpointed pipeline by (number of stages, microbatch size).
        makes_uneven: whether strategies found now come from one in ``recomputing``. Those are not added to it, as they
            would hide others that uneven checkpointing may improve more.
        uneven: results of uneven checkpointing, and their originals.
        floors: lower bounds of structures, used if time runs out before better ones are known.
        kept: strategies found by a subtask that runs in isolation; None outside of one.
    """

    best: Candidate | None = None
    near: list[Candidate] = field(default_factory=list)
    best_checkpointed: dict[tuple[int, int], Candidate] = field(default_factory=dict)
    is_applying_uneven: bool = False
    uneven: list[Strategy] = field(default_factory=list)
    lower_bounds: dict[Hashable, float] = field(default_factory=dict)
    kept: list[Candidate] | None = None

    def begin(self, best: Candidate | None) -> None:
        """Reset to one initial strategy."""
        vars(self).update(vars(Incumbent()))
        if best is not None:
            self.keep(best)

    @property
    def cutoff_s(self) -> float:
        return INFINITE if self.best is None else self.best.costs.step_time_s

    def keep(self, candidate: Candidate) -> bool:
        """Add a strategy; return whether it is the new best."""
        if not any(candidate.strategy == each.strategy for each in self.near):
            self.near = sorted([*self.near, candidate], key=step_s)[:NUM_FASTEST]
        is_best = candidate.costs.step_time_s < self.cutoff_s * (1 - ROUNDING)
        if is_best:
            self.best = candidate
        if self.kept is not None:
            self.kept.append(candidate)
        strategy = candidate.strategy
        if strategy.pipeline and strategy.recompute and not self.is_applying_uneven:
            key = strategy.num_stages, strategy.micro_batch
            self.best_checkpointed[key] = min(self.best_checkpointed.get(key, candidate), candidate, key=step_s)
        return is_best

    def useful(self) -> tuple[Candidate, ...]:
        """Strategies of a subtask that the main search uses."""
        asked = [self.best, *self.best_checkpointed.values()]
        return tuple(each for each in self.kept or () if any(each is other for other in asked))

    def raise_lower_bound(self, structure: Hashable, bound: float) -> None:
        self.lower_bounds[structure] = max(self.lower_bounds[structure], bound)
