"""Repeated layers as periodic runs: stretches of a sequence in which each element equals the one a period before it.

Elements are compared by keys. A key that gives references as distances back is the same for every layer that reads the
previous one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ROUNDING_RELATIVE = 1e-9  # of the total weight: more than the rounding error of its sums
Keys = NDArray[np.int64]


class PeriodicRun(NamedTuple):
    """Elements ``start`` to ``stop - 1``: copies of ``period`` elements, and possibly part of another copy."""

    start: int
    stop: int
    period: int

    @property
    def copies(self) -> int:
        return (self.stop - self.start) // self.period


def key_ids(keys: Iterable[Hashable]) -> Keys:
    """A number for each key, equal for equal keys."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)


def likely_periods(keys: Keys, most: int) -> list[int]:
    """The most frequent distances between an element and the previous equal one, in order."""
    last: dict[int, int] = {}
    distances: Counter[int] = Counter()
    for at, key in enumerate(keys.tolist()):
        if key in last:
            distances[at - last[key]] += 1
        last[key] = at
    return [distance for distance, _ in distances.most_common(most)]


def periodic_runs(keys: Keys, period: int, copies: int = 2) -> list[PeriodicRun]:
    """All maximal runs of a period with at least ``copies`` copies."""
    alike = np.concatenate(([False], keys[:-period] == keys[period:], [False]))
    edges = np.flatnonzero(alike[1:] != alike[:-1]).reshape(-1, 2)
    edges = edges[edges[:, 1] - edges[:, 0] >= (copies - 1) * period]
    return [PeriodicRun(start, end + period, period) for start, end in edges.tolist()]


def heaviest_run(keys: Keys, weights: Sequence[float], least: int = 1) -> tuple[float, PeriodicRun]:
    """The run of whole copies with the largest weight, and this weight; weight 0 if nothing repeats.

    Among equal runs the first wins. A copy must have at least ``least`` elements with a positive weight. Exact sums are
    computed only for runs that cumulative weights, up to their rounding error, do not rule out.
    """
    total = np.concatenate(([0.0], np.cumsum(weights)))
    counted = np.concatenate(([0], np.cumsum(np.asarray(weights) > 0)))
    slack = ROUNDING_RELATIVE * float(total[-1])
    best = 0.0, PeriodicRun(0, 0, 1)
    for period in range(1, len(keys) // 2 + 1):
        for run in periodic_runs(keys, period):
            starts = np.arange(run.start, run.stop - 2 * period + 1)
            stops = run.stop - (run.stop - starts) % period
            likely = total[stops] - total[starts] >= best[0] - slack
            likely &= counted[starts + period] - counted[starts] >= least
            for start, stop in zip(starts[likely].tolist(), stops[likely].tolist(), strict=True):
                if total[stop] - total[start] >= best[0] - slack:
                    weight = sum(weights[start:stop])
                    if weight > best[0]:
                        best = weight, PeriodicRun(start, stop, period)
    return best
