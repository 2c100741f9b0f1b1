"""What search compares."""

from __future__ import annotations

from dataclasses import dataclass

from autosbp.plan import Costs, Strategy


@dataclass(frozen=True)
class Candidate:
    """A strategy with its costs."""

    strategy: Strategy
    costs: Costs

    @property
    def memory_bytes(self) -> int:
        """Of the fullest device."""
        return self.costs.memory_bytes_per_device


@dataclass(frozen=True)
class TooLarge:
    """A strategy that takes more memory than there is, even with smaller messages: what else it costs is not asked."""

    strategy: Strategy
    memory_bytes: int


Tried = Candidate | TooLarge
