"""Least P2P time of a partition in which every stage fits in the step time.

Messages are smallest at the ends of a model, where one side of a cut has hardly any work. But then another stage has
most of the work and takes most of the time. So dynamic programming over all places, in order, cuts the chunks: a chunk
may lie between two places if the least seconds of its ops in any layout, plus the time that its stage waits for its
messages, fit in the step. The bound is the least sum of messages over all such partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MessageCut:
    """Messages over one cut of a schedule, per place.

    ``ahead_s`` and ``back_s`` are the seconds of one microbatch's message, forward and backward. ``crossings`` counts,
    for each direction, the messages that are waited for in all; ``own`` those that the cut's two stages wait for."""

    forward_s: Floats
    backward_s: Floats
    waited_counts: tuple[float, float]
    own: tuple[float, float]


def work_between(first: Sequence[int], last: Sequence[int], seconds: Floats, places: Sequence[int], end: int) -> Floats:
    """Least work between any two of the start, the places and the end: the sum of the items that lie whole between them.

    Args:
        first, last: indices of the first and last op of each item.
        seconds: least seconds of each item.
        places: indices of the ops before which the model may be cut, ascending.
        end: number of ops.

    Returns:
        [from, to] over the start, the places and the end.
    """
    borders = np.array([0, *places, end])
    found = np.zeros((len(borders), len(borders)))
    begins = np.searchsorted(borders, first, side="right") - 1
    ends = np.searchsorted(borders, last, side="right")
    np.add.at(found, (begins, ends), seconds)
    return np.cumsum(np.cumsum(found[::-1], axis=0)[::-1], axis=1)


def least_messages_s(work_s: Floats, cuts: Sequence[MessageCut], step_s: float, sends_per_step: int) -> float:
    """Least seconds of messages a step over all partitions; inf if no partition fits every chunk into ``step_s``.

    Args:
        work_s: seconds of a step, as ``work_between`` returns them.
        cuts: the messages over each cut, in order.
        step_s: upper limit of each stage's seconds.
        in_turn: messages that a stage sends over a cut one after another, whether it waits for them or not.
    """
    inner = len(work_s) - 2
    after = np.arange(inner + 1)[:, None] < np.arange(1, inner + 1)  # a chunk has at least one op
    least = np.full(inner + 1, np.inf)  # of the chunks so far, by the border of the last cut
    least[0] = 0.0
    behind_s, behind = np.zeros(inner + 1), 0.0
    for cut in cuts:
        waited_s = cut.own[0] * cut.forward_s + behind * behind_s[:, None]
        sent_s = sends_per_step * (cut.forward_s + behind_s[:, None])
        fits = after & (work_s[:-1, 1:-1] + waited_s <= step_s) & (sent_s <= step_s)
        price_s = cut.waited_counts[0] * cut.forward_s + cut.waited_counts[1] * cut.backward_s
        least[1:], least[0] = np.where(fits, least[:, None], np.inf).min(axis=0) + price_s, np.inf
        behind_s, behind = np.concatenate([[0.0], cut.backward_s]), cut.own[1]
    fits = work_s[:-1, -1] + behind * behind_s <= step_s
    return float(np.where(fits, least, np.inf).min())
