"""Repeated layers as periodic runs: stretches of a sequence each element of which equals the one a period before it.

Elements are told apart by keys. A key that gives references as distances back is the same in every layer that reads the one
before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ROUNDING_RELATIVE = 1e-9  # of all weights: more than sums of them are off by
Keys = NDArray[np.int64]


class Run(NamedTuple):
    """Elements ``start`` to ``stop - 1``: copies of ``period`` elements each, and perhaps a part of one more."""

    start: int
    stop: int
    period: int

    @property
    def copies(self) -> int:
        return (self.stop - self.start) // self.period


def numbered(keys: Iterable[Hashable]) -> Keys:
    """A number for each key, the same for equal ones."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)


def likely_periods(keys: Keys, most: int) -> list[int]:
    """The commonest distances between an element and the last one like it, in order."""
    last: dict[int, int] = {}
    distances: Counter[int] = Counter()
    for at, key in enumerate(keys.tolist()):
        if key in last:
            distances[at - last[key]] += 1
        last[key] = at
    return [distance for distance, _ in distances.most_common(most)]


def runs(keys: Keys, period: int, copies: int = 2) -> list[Run]:
    """All runs of a period, each as long as it gets, that have so many copies."""
    alike = np.concatenate(([False], keys[:-period] == keys[period:], [False]))
    edges = np.flatnonzero(alike[1:] != alike[:-1]).reshape(-1, 2)
    edges = edges[edges[:, 1] - edges[:, 0] >= (copies - 1) * period]
    return [Run(start, end + period, period) for start, end in edges.tolist()]


def heaviest_run(keys: Keys, weights: Sequence[float], least: int = 1) -> tuple[float, Run]:
    """The run of whole copies that weighs most, the first of equals, with its weight: 0 where nothing repeats. A copy has
    ``least`` elements that weigh anything. Sums are made only of runs that cumulated weights, but for their rounding, do not
    rule out."""
    total = np.concatenate(([0.0], np.cumsum(weights)))
    counted = np.concatenate(([0], np.cumsum(np.asarray(weights) > 0)))
    slack = ROUNDING_RELATIVE * float(total[-1])
    best = 0.0, Run(0, 0, 1)
    for period in range(1, len(keys) // 2 + 1):
        for run in runs(keys, period):
            starts = np.arange(run.start, run.stop - 2 * period + 1)
            stops = run.stop - (run.stop - starts) % period
            likely = total[stops] - total[starts] >= best[0] - slack
            likely &= counted[starts + period] - counted[starts] >= least
            for start, stop in zip(starts[likely].tolist(), stops[likely].tolist(), strict=True):
                if total[stop] - total[start] >= best[0] - slack:
                    weight = sum(weights[start:stop])
                    if weight > best[0]:
                        best = weight, Run(start, stop, period)
    return best
