"""Shortest paths from many layouts at once over the steps of a tensor's boxing (Bellman 1958).

Each round relaxes all steps, until no layout gets cheaper. Costs are summed along a path from its source, so results
are bitwise identical whatever else is computed and in whichever order steps are relaxed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autosbp.native import LOOPS
from autosbp.sbp.boxing_step_table import EvenSteps

MAX_WORK_VECTORIZED = 150_000
"""Steps times sources: up to this size a round with few numpy calls is faster, above it one that uses little memory."""


def shortest_path_s(steps: EvenSteps, step_s: NDArray[np.float64], sources: Sequence[int]) -> NDArray[np.float64]:
    """Seconds from each source to each stop, as (sources, stops); infinite where no path leads.

    Args:
        step_s: seconds of each step.
        sources: indices of stops.
    """
    costs = np.full((len(steps.chosen), len(sources)), np.inf)
    costs[sources, np.arange(len(sources))] = 0.0
    if LOOPS is not None:
        order = steps.by_target[0]
        LOOPS.cheapest_ways(steps.source[order], steps.target[order], step_s[order], costs)
    elif len(step_s) * len(sources) <= MAX_WORK_VECTORIZED:
        _relax_all_at_once(steps, step_s, costs)
    else:
        _relax_in_place(steps, step_s, costs)
    return np.ascontiguousarray(costs.T)


def _relax_all_at_once(steps: EvenSteps, step_s: NDArray[np.float64], costs: NDArray[np.float64]) -> None:
    """Relax all steps at once, then take the minimum over those into each stop."""
    order, ends, starts = steps.by_target
    spent, origins = step_s[order, None], steps.source[order]
    while len(ends):
        before = costs[ends]
        better = np.minimum(before, np.minimum.reduceat(costs[origins] + spent, starts, axis=0))
        if np.array_equal(better, before):
            break
        costs[ends] = better


def _relax_in_place(steps: EvenSteps, step_s: NDArray[np.float64], costs: NDArray[np.float64]) -> None:
    """Relax one step into each stop at a time, so that later steps see earlier improvements.

    Sources that did not improve in a round are finished.
    """
    rounds = [(targets, steps.source[chosen], step_s[chosen, None]) for targets, chosen in steps.steps_by_ordinal]
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
