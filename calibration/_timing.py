"""Time-boxed sampling of a call that all ranks make together, and the summary of the samples."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import count
from statistics import median

from autosbp.costmodel.calibration import QUANTILES, Point, Spread
from calibration._arrival import Arrival

MIN_REPEATS = 3
LEAST_CALLS = MIN_REPEATS + 1  # and one to warm up
_MAX_BATCH = 1000


def sample(
    run: Callable[[], object],
    *,
    together: Callable[[float], float],
    repeats: int,
    box_s: float,
    batch_s: float,
    clock: Callable[[], float] = time.perf_counter,
    seconds_of: Callable[[Callable[[], object], int], float] | None = None,
    arrival: Arrival | None = None,
) -> list[float]:
    """Seconds of one ``run``, once per repeat, on this rank; every rank makes the same number of calls.

    ``together`` waits for all ranks and returns the largest of their values. After a call to warm up and one that shows how
    long it takes, each repeat starts with it and averages a batch of calls back to back that takes about ``batch_s``, so
    that neither the exit of the barrier nor a slice of the scheduler is taken for the call; where one call takes so long,
    the second one is the first repeat. As many repeats are made, from ``MIN_REPEATS`` to
    ``repeats``, as fit in ``box_s``. ``seconds_of`` times so many calls in its own way, such as a GPU's, in place of
    ``clock``. With an ``arrival``, one rank comes late to each call of a repeat: by how much is not counted, so that of the
    slowest rank's times, not of each, none is below 0.
    """
    arrival = arrival or Arrival()
    turns = count(0)

    def timed(batch: int) -> float:
        turn = next(turns)
        together(0.0)
        if seconds_of is not None:
            return seconds_of(run, batch) / batch
        start = clock()
        for _ in range(batch):
            arrival.come(turn)
            run()
        return (clock() - start) / batch - arrival.late_s

    timed(1)
    second_s = timed(1)
    once = max(together(second_s + arrival.late_s), 1e-9)
    batch = min(max(math.ceil(batch_s / once), 1), _MAX_BATCH)
    wanted = min(max(int(box_s / (once * batch)), MIN_REPEATS), max(repeats, MIN_REPEATS))
    first = [second_s] if batch == 1 else []
    return first + [timed(batch) for _ in range(wanted - len(first))]


def slowest_rank_times(by_rank: Sequence[Sequence[float]], groups: Sequence[Sequence[int]]) -> list[float]:
    """For every group and repeat, the time of the group's slowest rank."""
    return [max(times) for ranks in groups for times in zip(*(by_rank[rank] for rank in ranks), strict=True)]


def summary(num_bytes: int, times: Sequence[float], num_repeats: int) -> Point:
    """Median, interquartile range and spread of the times, in seconds; several groups give as many times a repeat."""
    ordered = sorted(times)
    found = tuple(_quantile(ordered, part) for part in QUANTILES)
    middle, low, high = (found[QUANTILES.index(part)] for part in (0.5, 0.25, 0.75))
    mad_s = median(abs(time - middle) for time in times)
    return Point(num_bytes, middle, high - low, num_repeats, Spread(mad_s, found))


def _quantile(ordered: Sequence[float], part: float) -> float:
    """Linear between the two nearest of the ordered values."""
    at = part * (len(ordered) - 1)
    below = ordered[int(at)]
    above = ordered[min(int(at) + 1, len(ordered) - 1)]
    return below + (above - below) * (at - int(at))
