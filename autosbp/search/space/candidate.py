"""What search compares."""

from __future__ import annotations

from dataclasses import dataclass

from autosbp.plan import Costs, Strategy


@dataclass(frozen=True)
class Candidate:
    """A strategy with its costs."""

    strategy: Strategy
    costs: Costs
