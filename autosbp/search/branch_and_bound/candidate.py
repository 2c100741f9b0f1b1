"""Candidates of the search: strategies with their costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autosbp.plan.plan import Costs, Strategy

INFINITE = float("inf")
ROUNDING = 1e-12
"""Relative difference in step time, below which the first strategy found stays."""


@dataclass(frozen=True)
class Candidate:
    """A strategy with its costs."""

    strategy: Strategy
    costs: Costs

    @property
    def memory_bytes(self) -> int:
        """Bytes of the fullest device."""
        return self.costs.memory_bytes_per_device


def step_s(candidate: Candidate) -> float:
    return candidate.costs.step_time_s


@dataclass(frozen=True)
class OversizedStrategy:
    """A strategy that exceeds the memory limit even with small buckets; its other costs are not computed."""

    strategy: Strategy
    memory_bytes: int


CostedStrategy = Candidate | OversizedStrategy


def fastest(found: Iterable[CostedStrategy | None]) -> Candidate | None:
    """The fastest fully costed candidate; None if there is none."""
    return min((each for each in found if isinstance(each, Candidate)), key=step_s, default=None)
