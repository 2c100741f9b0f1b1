"""Pool the fits of collectives over one group shape that cannot be told apart: they share alpha, beta and knots.

Each collective has only a few points, so its own fit follows their noise. Two fits are merged if an F-test cannot
distinguish them from one common fit, and if the common fit predicts nearly the same times. The most similar pair is
merged first, until no pair qualifies. Every test compares with the original fits, however they were merged before. If
not all fits end up in one pool, the members of a pool were selected for being close to each other, which does not make
them more accurate; their intervals therefore include those of their own fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import f as f_distribution

from autosbp.calibration._alpha_beta_fit import fit_of
from autosbp.calibration._measurements import Rows
from autosbp.calibration._regression import SCALE_FLOOR, LineFit
from autosbp.costmodel.calibration import CollectiveFit
from autosbp.costmodel.network import link_bytes_factor

Interval = tuple[float, float]
SIGNIFICANCE = 0.05
"""Significance level: fits are pooled if the chance of differences this large, under equal parameters, is above it."""
MAX_RELATIVE_CHANGE = 0.1
"""Maximum relative change of a collective's predicted times by pooling.

On some machines small messages are so noisy that no F-test would tell large ones apart.
"""


def pool_fits(fits: Sequence[CollectiveFit]) -> list[CollectiveFit]:
    """Return the fits in their order, pooled where they cannot be told apart.

    Only fits of the same group shape, number of concurrent groups and bytes per link are pooled.
    """
    found = list(fits)
    for members in _comparable_fits(fits):
        pools = _merge_pools([_Pool((at,), fits[at]) for at in members])
        for pool in pools:
            if len(pool.members) > 1:
                for at in pool.members:
                    found[at] = pool.of(at, fits, chosen=len(pools) > 1)
    return found


def _comparable_fits(fits: Sequence[CollectiveFit]) -> Iterator[list[int]]:
    """Index lists of fits with comparable betas: equal traffic over equal links."""
    keys = [(fit.group_shape, fit.num_groups, link_bytes_factor(fit.kind, fit.group_shape)) for fit in fits]
    for key in dict.fromkeys(keys):
        yield [at for at, other in enumerate(keys) if other == key]


@dataclass(frozen=True)
class _OwnFit:
    """The points of one fit and the line fitted to them alone."""

    rows: Rows
    line: LineFit

    def moved(self, values: NDArray[np.float64], knots: Sequence[int]) -> float:
        """Largest relative change of the predicted times at these points under other parameters."""
        return float(np.max(np.abs(self.rows.columns(knots) @ values / self.line.predicted - 1.0)))


class _Pool:
    """Fits that share one line; ``members`` are their indices."""

    def __init__(self, members: tuple[int, ...], fit: CollectiveFit | None = None) -> None:
        self.members = members
        self.own_fits: tuple[_OwnFit, ...] = ()
        self.knots: tuple[int, ...] = ()
        if fit is not None:
            rows = Rows.of(fit.kind, fit.group_shape, fit.points)
            self.knots = tuple(size for size, _ in fit.knots)
            self.line = rows.fit(self.knots)
            self.own_fits = (_OwnFit(rows, self.line),)

    @property
    def num_values(self) -> int:
        """Number of parameters: alpha, a beta per piece, and the positions of the knots."""
        return 2 + 2 * len(self.knots)

    def merged_with(self, other: _Pool) -> tuple[float, _Pool] | None:
        """The merged pool with its p-value, or None if the two can be told apart."""
        if len(self.knots) != len(other.knots):
            return None
        owns = (*self.own_fits, *other.own_fits)
        rows = Rows.joined([own.rows for own in owns])
        knots = min({self.knots, other.knots}, key=lambda knots: (rows.fit(knots).loss, knots))
        line = rows.fit(knots)
        apart, saved = sum(own.line.loss for own in owns), (len(owns) - 1) * self.num_values
        left = len(rows.times) - len(owns) * self.num_values
        if left < 1:
            return None
        noise = max(apart / left, SCALE_FLOOR**2)
        chance = float(f_distribution.sf(max(line.loss - apart, 0.0) / saved / noise, saved, left))
        if chance < SIGNIFICANCE or any(own.moved(line.values, knots) > MAX_RELATIVE_CHANGE for own in owns):
            return None
        pool = _Pool(tuple(sorted((*self.members, *other.members))))
        pool.own_fits, pool.knots, pool.line = owns, knots, line
        return chance, pool

    def of(self, at: int, fits: Sequence[CollectiveFit], chosen: bool) -> CollectiveFit:
        """The fit at index ``at`` with the pool's line; it keeps its own outliers.

        If the members were ``chosen`` among several pools, its intervals also cover those of its own fit.
        """
        fit = fits[at]
        others = tuple(_name(fits[other]) for other in self.members if other != at)
        found = fit_of(fit.kind, fit.group_shape, fit.points, self.knots, self.line)
        if chosen:
            found = replace(
                found,
                alpha_interval_s=_interval_hull(found.alpha_interval_s, fit.alpha_interval_s),
                beta_interval_s_per_byte=_interval_hull(found.beta_interval_s_per_byte, fit.beta_interval_s_per_byte),
            )
        return replace(
            found, outliers=fit.outliers, placement=fit.placement, num_groups=fit.num_groups, waiting_s=fit.waiting_s,
            shared_with=others,
        )  # fmt: skip


def _merge_pools(pools: list[_Pool]) -> list[_Pool]:
    """Merge pools, the most similar pair first, until no pair can be merged."""
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[float, _Pool] | None] = {}
    while True:
        best: tuple[float, _Pool] | None = None
        for one, other in combinations(pools, 2):
            pair = one.members, other.members
            if pair not in known:
                known[pair] = one.merged_with(other)
            found = known[pair]
            if found is not None and (best is None or found[0] > best[0]):
                best = found
        if best is None:
            return pools
        joined = best[1]
        pools = [pool for pool in pools if not set(pool.members) <= set(joined.members)] + [joined]


def _interval_hull(one: Interval | None, other: Interval | None) -> Interval | None:
    """Smallest interval that contains both; None if either is None."""
    return one and other and (min(one[0], other[0]), max(one[1], other[1]))


def _name(fit: CollectiveFit) -> str:
    return fit.kind if fit.placement is None else f"{fit.kind} {fit.placement}"
