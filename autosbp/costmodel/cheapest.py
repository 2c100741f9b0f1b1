"""Cheapest ways from many layouts at once, over the steps of a tensor's boxing (Bellman 1958).

Each round makes every stop as cheap as its steps' origins allow, until none gets cheaper. Costs are added up along a way from
its source on, so that they are the same to the last bit whatever else is asked for, and in whichever order steps are taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autosbp.native import LOOPS
from autosbp.sbp.step_table import EvenSteps

FEW = 150_000
"""Steps times sources: up to here a round in few operations is quicker, from here on one in operations on little memory."""


def cheapest_s(steps: EvenSteps, step_s: NDArray[np.float64], sources: Sequence[int]) -> NDArray[np.float64]:
    """Seconds from each source to each stop; (sources, stops), infinite where no way leads.

    Args:
        step_s: of each of the steps.
        sources: places of stops.
    """
    costs = np.full((len(steps.chosen), len(sources)), np.inf)
    costs[sources, np.arange(len(sources))] = 0.0
    if LOOPS is not None:
        order = steps.by_target[0]
        LOOPS.cheapest_ways(steps.source[order], steps.target[order], step_s[order], costs)
    elif len(step_s) * len(sources) <= FEW:
        _in_rounds(steps, step_s, costs)
    else:
        _in_place(steps, step_s, costs)
    return np.ascontiguousarray(costs.T)


def _in_rounds(steps: EvenSteps, step_s: NDArray[np.float64], costs: NDArray[np.float64]) -> None:
    """All steps at once, then the least of those into each stop."""
    order, ends, starts = steps.by_target
    spent, origins = step_s[order, None], steps.source[order]
    while len(ends):
        before = costs[ends]
        better = np.minimum(before, np.minimum.reduceat(costs[origins] + spent, starts, axis=0))
        if np.array_equal(better, before):
            break
        costs[ends] = better


def _in_place(steps: EvenSteps, step_s: NDArray[np.float64], costs: NDArray[np.float64]) -> None:
    """One step into each stop after the other: each finds what those before it made cheaper. Sources of which nothing got
    cheaper in a round are done."""
    rounds = [(targets, steps.source[chosen], step_s[chosen, None]) for targets, chosen in steps.by_rank]
    open_sources, now = np.arange(costs.shape[1]), costs.copy()
    while len(open_sources):
        before = now.copy()
        for targets, origins, spent in rounds:
            through = now[origins]
            through += spent
            if len(targets) == len(now):
                np.minimum(now, through, out=now)
            else:
                now[targets] = np.minimum(now[targets], through)
        changed = (now != before).any(axis=0)
        costs[:, open_sources[~changed]] = now[:, ~changed]
        open_sources, now = open_sources[changed], np.ascontiguousarray(now[:, changed])
