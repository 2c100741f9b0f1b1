"""Choice of the candidates to try: fidelity of the scores, filter, and diversity (AutoDist, section 2.4)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from autosbp.tuning.ranking import ranking_accuracy
from autosbp.tuning.sampler import Proposal
from autosbp.tuning.strategy_space import Choices

WANTED_ACCURACY = 0.8
"""Share of pairs ranked right, from which scores are trusted."""
MIN_TRIALS = 6
"""Trials without which nothing is known about the scores."""
DIVERSITY = 1.0
"""Score that a choice is worth that no other candidate of the round has."""


def fidelity_level(earlier: Sequence[float], seconds: Sequence[float], current: Sequence[float]) -> float:
    """The score below which scores are trusted; -inf if none are.

    It is the highest one for which the recent trials scored below it were ranked right well enough.

    Args:
        earlier: scores of recent trials before they ran, which therefore are predictions.
        seconds: their measured times; infinite for failed ones.
        current: their scores by the current model, on whose scale the level is.
    """
    order = np.argsort(earlier)
    for count in range(len(order), MIN_TRIALS - 1, -1):
        below = order[:count]
        accuracy = ranking_accuracy([earlier[at] for at in below], [seconds[at] for at in below])
        if accuracy is not None and accuracy >= WANTED_ACCURACY:
            return float(current[order[count - 1]])
    return -math.inf


def elite(proposals: Sequence[Proposal], level: float, at_least: int) -> list[Proposal]:
    """Proposals that score at least ``level``, and the best ``at_least`` anyway; best first."""
    ranked = sorted(proposals, key=_score, reverse=True)
    above = sum(_score(each) >= level for each in ranked)
    return ranked[: max(above, at_least)]


def diverse(proposals: Sequence[Proposal], count: int) -> list[Proposal]:
    """``count`` proposals by score and by how many of their choices no earlier one has (Chen et al. 2018, section 5.3)."""
    left, chosen, covered = list(proposals), list[Proposal](), set[Hashable]()
    while left and len(chosen) < count:
        best = max(left, key=lambda each: _score(each) + DIVERSITY * len(_choices(each) - covered))
        left.remove(best)
        chosen.append(best)
        covered |= _choices(best)
    return chosen


def scored(proposals: Sequence[Proposal], scores: Sequence[float]) -> list[Proposal]:
    return [replace(each, score=score) for each, score in zip(proposals, scores, strict=True)]


def _choices(proposal: Proposal) -> set[Hashable]:
    return (
        set() if proposal.choices is None else {(name, getattr(proposal.choices, name)) for name in Choices.__slots__}
    )


def _score(proposal: Proposal) -> float:
    assert proposal.score is not None
    return proposal.score
