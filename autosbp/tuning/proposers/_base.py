"""Contract of a proposer.

A proposer chooses the strategies to measure next. ``propose(count, trials)`` gets all trials so far, oldest first and
including those of earlier runs, and returns up to ``count`` strategies that are not among them; an empty list ends the
search. It is called from one thread, and the list of trials only grows. A failed trial has no ``step_time_s`` and counts
as slower than any other. The same seed and trials give the same proposals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from autosbp.tuning.sampler import Proposal
from autosbp.tuning.trial_store import Trial


class Proposer(Protocol):
    """Chooses the strategies to measure next; see the module docstring for the contract."""

    def propose(self, count: int, trials: Sequence[Trial]) -> list[Proposal]: ...


def known_strategies(trials: Sequence[Trial]) -> set[str]:
    """Ids of the measured strategies."""
    return {trial.strategy_id for trial in trials}


def measured_s(trial: Trial) -> float:
    """Measured step time in seconds; infinite if the trial failed."""
    return math.inf if trial.step_time_s is None else trial.step_time_s
