"""Selection of the candidates to measure: fidelity of the scores, filter and diversity (AutoDist, section 2.4)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from autosbp.tuning.ranking import ranking_accuracy
from autosbp.tuning.sampler import Proposal
from autosbp.tuning.strategy_space import Choices

WANTED_ACCURACY = 0.8
"""Share of correctly ranked pairs from which scores are trusted."""
MIN_TRIALS = 6
"""Minimum number of trials for an estimate of ranking accuracy."""
DIVERSITY = 1.0
"""Bonus to the score for each choice that no selected candidate of the round has."""


def fidelity_level(earlier: Sequence[float], seconds: Sequence[float], current: Sequence[float]) -> float:
    """Highest score up to which the ranking of recent trials is accurate enough (``WANTED_ACCURACY``).

    Args:
        earlier: scores that recent trials had before they ran.
        seconds: measured step times of these trials; infinite for failed ones.
        current: scores of these trials by the current model.

    Returns:
        A score on the scale of ``current``; -inf if no level is accurate enough.
    """
    order = np.argsort(earlier)
    for count in range(len(order), MIN_TRIALS - 1, -1):
        below = order[:count]
        accuracy = ranking_accuracy([earlier[at] for at in below], [seconds[at] for at in below])
        if accuracy is not None and accuracy >= WANTED_ACCURACY:
            return float(current[order[count - 1]])
    return -math.inf


def elite(proposals: Sequence[Proposal], level: float, at_least: int) -> list[Proposal]:
    """Proposals with a score of at least ``level``, but no fewer than the best ``at_least``; best first."""
    ranked = sorted(proposals, key=_score, reverse=True)
    above = sum(_score(each) >= level for each in ranked)
    return ranked[: max(above, at_least)]


def diverse(proposals: Sequence[Proposal], count: int) -> list[Proposal]:
    """Greedy selection of ``count`` proposals by score plus a bonus for new choices (Chen et al. 2018, section 5.3)."""
    left, chosen, covered = list(proposals), list[Proposal](), set[Hashable]()
    while left and len(chosen) < count:
        best = max(left, key=lambda each: _score(each) + DIVERSITY * len(_choices(each) - covered))
        left.remove(best)
        chosen.append(best)
        covered |= _choices(best)
    return chosen


def scored(proposals: Sequence[Proposal], scores: Sequence[float]) -> list[Proposal]:
    """The proposals with their scores."""
    return [replace(each, score=score) for each, score in zip(proposals, scores, strict=True)]


def _choices(proposal: Proposal) -> set[Hashable]:
    return (
        set() if proposal.choices is None else {(name, getattr(proposal.choices, name)) for name in Choices.__slots__}
    )


def _score(proposal: Proposal) -> float:
    assert proposal.score is not None
    return proposal.score
