"""Time-boxed sampling of a call that all ranks make together, and summary statistics of the samples."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import count
from statistics import median

from autosbp.calibration._arrival_skew import ArrivalSkew
from autosbp.costmodel.calibration import QUANTILES, Point, Spread

MIN_REPEATS = 3
MIN_CALLS = MIN_REPEATS + 1  # plus one warm-up call
_MAX_BATCH = 1000


def sample(
    run: Callable[[], object],
    *,
    barrier_max: Callable[[float], float],
    repeats: int,
    box_s: float,
    batch_s: float,
    clock: Callable[[], float] = time.perf_counter,
    seconds_of: Callable[[Callable[[], object], int], float] | None = None,
    arrival: ArrivalSkew | None = None,
) -> list[float]:
    """Seconds per ``run``, one value per repeat, on this rank; every rank makes the same number of calls.

    After a warm-up call and one that estimates the duration, each repeat starts with ``together`` and averages a batch
    of back-to-back calls of about ``batch_s`` seconds. This keeps the barrier's exit and scheduler slices out of the
    result. If a single call already takes that long, the second call counts as the first repeat.

    Args:
        together: barrier that returns the maximum of the ranks' values.
        repeats: maximum number of repeats; at least ``MIN_REPEATS`` are made, even if they exceed ``box_s`` seconds.
        seconds_of: times a number of calls in its own way, such as with GPU events, instead of ``clock``.
        arrival: makes one rank late for each call of a repeat. Its delay is subtracted, so single ranks' times may be
            negative, but not the slowest rank's.
    """
    arrival = arrival or ArrivalSkew()
    turns = count(0)

    def timed(batch: int) -> float:
        turn = next(turns)
        barrier_max(0.0)
        if seconds_of is not None:
            return seconds_of(run, batch) / batch
        start = clock()
        for _ in range(batch):
            arrival.come(turn)
            run()
        return (clock() - start) / batch - arrival.late_s

    timed(1)
    second_s = timed(1)
    once = max(barrier_max(second_s + arrival.late_s), 1e-9)
    batch = min(max(math.ceil(batch_s / once), 1), _MAX_BATCH)
    wanted = min(max(int(box_s / (once * batch)), MIN_REPEATS), max(repeats, MIN_REPEATS))
    first = [second_s] if batch == 1 else []
    return first + [timed(batch) for _ in range(wanted - len(first))]


def slowest_rank_times(by_rank: Sequence[Sequence[float]], groups: Sequence[Sequence[int]]) -> list[float]:
    """Per group and repeat, the time of the group's slowest rank."""
    return [max(times) for ranks in groups for times in zip(*(by_rank[rank] for rank in ranks), strict=True)]


def summary(num_bytes: int, times: Sequence[float], num_repeats: int) -> Point:
    """Median, interquartile range and spread of the times, in seconds; several groups contribute a time each per repeat."""
    ordered = sorted(times)
    found = tuple(_quantile(ordered, part) for part in QUANTILES)
    middle, low, high = (found[QUANTILES.index(part)] for part in (0.5, 0.25, 0.75))
    mad_s = median(abs(time - middle) for time in times)
    return Point(num_bytes, middle, high - low, num_repeats, Spread(mad_s, found))


def _quantile(ordered: Sequence[float], part: float) -> float:
    """Quantile by linear interpolation between the nearest ordered values."""
    at = part * (len(ordered) - 1)
    below = ordered[int(at)]
    above = ordered[min(int(at) + 1, len(ordered) - 1)]
    return below + (above - below) * (at - int(at))
