"""The least that messages between the stages take, where no chunk works longer than a step.

Messages are smallest where there is next to nothing to do on one side of a cut: at a model's end. But a stage that has most of
the work takes most of the time. So chunks are cut by dynamic programming over all places, in their order: a chunk may lie
between two of them if what its ops take at the least, whatever their layouts, and what its stage waits for its messages fit
in the step; of all ways to cut, that with the least messages in sum is a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Cut:
    """Messages over one cut of a schedule, at each place: seconds of one microbatch's, forward and back; of how many of
    them a stage waits in all (``crossings``), and how many its two stages do (``own``)."""

    ahead_s: Floats
    back_s: Floats
    crossings: tuple[float, float]
    own: tuple[float, float]


def work_between(first: Sequence[int], last: Sequence[int], seconds: Floats, places: Sequence[int], end: int) -> Floats:
    """The least work between any two of the start, the places and the end: of what lies there whole.

    Args:
        first, last: ops, by number, of things that take so many ``seconds``.
        places: ops before which there may be a cut, in order; ``end`` is the number of ops.

    Returns:
        [from, to] over the start, the places and the end.
    """
    borders = np.array([0, *places, end])
    found = np.zeros((len(borders), len(borders)))
    begins = np.searchsorted(borders, first, side="right") - 1
    ends = np.searchsorted(borders, last, side="right")
    np.add.at(found, (begins, ends), seconds)
    return np.cumsum(np.cumsum(found[::-1], axis=0)[::-1], axis=1)


def least_messages_s(work_s: Floats, cuts: Sequence[Cut], step_s: float, in_turn: int) -> float:
    """Of all ways to cut, in sum over a step; inf where none leaves every chunk room in ``step_s``.

    Args:
        work_s: of a step, as ``work_between`` gives it.
        in_turn: how many messages a stage sends over a cut, one after another, whether it waits for them or not.
    """
    inner = len(work_s) - 2
    after = np.arange(inner + 1)[:, None] < np.arange(1, inner + 1)  # a chunk has an op
    least = np.full(inner + 1, np.inf)  # of what is cut so far, the last time at each border
    least[0] = 0.0
    behind_s, behind = np.zeros(inner + 1), 0.0
    for cut in cuts:
        waited_s = cut.own[0] * cut.ahead_s + behind * behind_s[:, None]
        sent_s = in_turn * (cut.ahead_s + behind_s[:, None])
        fits = after & (work_s[:-1, 1:-1] + waited_s <= step_s) & (sent_s <= step_s)
        price_s = cut.crossings[0] * cut.ahead_s + cut.crossings[1] * cut.back_s
        least[1:], least[0] = np.where(fits, least[:, None], np.inf).min(axis=0) + price_s, np.inf
        behind_s, behind = np.concatenate([[0.0], cut.back_s]), cut.own[1]
    fits = work_s[:-1, -1] + behind * behind_s <= step_s
    return float(np.where(fits, least, np.inf).min())
