"""The contract of a proposer.

A proposer chooses which strategies are tried next. ``propose(count, trials)`` gets all trials so far, oldest first,
those of an earlier process too, and returns up to ``count`` strategies, none of them among the trials; an empty list
ends the search. It is called by one thread, with a history that only grows. A failed trial has no ``step_time_s``: it
is slower than any other. The same seed and history give the same proposals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from autosbp.tuning.sampler import Proposal
from autosbp.tuning.trial_store import Trial


class Proposer(Protocol):
    """See the module's docstring."""

    def propose(self, count: int, trials: Sequence[Trial]) -> list[Proposal]: ...


def known_strategies(trials: Sequence[Trial]) -> set[str]:
    """Ids of the strategies that were tried."""
    return {trial.strategy_id for trial in trials}


def measured_s(trial: Trial) -> float:
    """The measured step time; infinite if the trial failed."""
    return math.inf if trial.step_time_s is None else trial.step_time_s
