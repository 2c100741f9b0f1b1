"""Collectives over one group shape that cannot be told apart share one alpha, beta and knots.

Each has a few points, so its own fit follows their noise. Some are one where an F-test does not tell the fits of each from
one for all, and where that gives nearly what each does. The pair that is most alike is joined first, until no pair can be.
All are tested against their own fits, however they were joined: two groups of which each was joined because it is alike
differ more than two that were drawn. Where not all are one, those that are were chosen for being near each other, which
does not bring them nearer to the truth: each has the interval of its own fit, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import f as f_distribution

from autosbp.costmodel.calibration import CollectiveFit
from autosbp.costmodel.network import link_streams
from calibration._fit import fit_of
from calibration._regression import SCALE_FLOOR, LineFit
from calibration._rows import Rows

Interval = tuple[float, float]
SAME = 0.05
"""The chance of a difference as large as that of two fits of the same numbers, above which they are taken for the same."""
MAX_MOVE = 0.1
"""Relative: how far a common fit moves what a collective's own one gives for its sizes, at the most. Small messages are so
noisy on some machines that no test would tell large ones apart."""


def share_fits(fits: Sequence[CollectiveFit]) -> list[CollectiveFit]:
    """The fits in their order; those of one group shape, as many groups at once and as many bytes over a link that cannot be
    told apart are one."""
    found = list(fits)
    for members in _alike(fits):
        pools = _pools([_Pool((at,), fits[at]) for at in members])
        for pool in pools:
            if len(pool.members) > 1:
                for at in pool.members:
                    found[at] = pool.of(at, fits, chosen=len(pools) > 1)
    return found


def _alike(fits: Sequence[CollectiveFit]) -> Iterator[list[int]]:
    """Places of fits whose betas say the same: of as many bytes over the same links."""
    keys = [(fit.group_shape, fit.num_groups, link_streams(fit.kind, fit.group_shape)) for fit in fits]
    for key in dict.fromkeys(keys):
        yield [at for at, other in enumerate(keys) if other == key]


@dataclass(frozen=True)
class _Own:
    """The points of one fit, and the line through them alone."""

    rows: Rows
    line: LineFit

    def moved(self, values: NDArray[np.float64], knots: Sequence[int]) -> float:
        """The largest relative change of what the line gives for the points' sizes, under other values."""
        return float(np.max(np.abs(self.rows.columns(knots) @ values / self.line.predicted - 1.0)))


class _Pool:
    """Fits with one line: ``members`` are their places."""

    def __init__(self, members: tuple[int, ...], fit: CollectiveFit | None = None) -> None:
        self.members = members
        self.owns: tuple[_Own, ...] = ()
        self.knots: tuple[int, ...] = ()
        if fit is not None:
            rows = Rows.of(fit.kind, fit.group_shape, fit.points)
            self.knots = tuple(size for size, _ in fit.knots)
            self.line = rows.fitted(self.knots)
            self.owns = (_Own(rows, self.line),)

    @property
    def num_values(self) -> int:
        """Parameters: alpha, a beta for each piece, and the places of the knots."""
        return 2 + 2 * len(self.knots)

    def with_other(self, other: _Pool) -> tuple[float, _Pool] | None:
        """Both as one, with the chance of such differences from the fits of each; None where they can be told apart."""
        if len(self.knots) != len(other.knots):
            return None
        owns = (*self.owns, *other.owns)
        rows = Rows.joined([own.rows for own in owns])
        knots = min({self.knots, other.knots}, key=lambda knots: (rows.fitted(knots).loss, knots))
        line = rows.fitted(knots)
        apart, saved = sum(own.line.loss for own in owns), (len(owns) - 1) * self.num_values
        left = len(rows.times) - len(owns) * self.num_values
        if left < 1:
            return None
        noise = max(apart / left, SCALE_FLOOR**2)
        chance = float(f_distribution.sf(max(line.loss - apart, 0.0) / saved / noise, saved, left))
        if chance < SAME or any(own.moved(line.values, knots) > MAX_MOVE for own in owns):
            return None
        pool = _Pool(tuple(sorted((*self.members, *other.members))))
        pool.owns, pool.knots, pool.line = owns, knots, line
        return chance, pool

    def of(self, at: int, fits: Sequence[CollectiveFit], chosen: bool) -> CollectiveFit:
        """The fit at a place under the common line; its outliers are its own, and where the members were ``chosen`` among
        others, its intervals hold those of its own."""
        fit = fits[at]
        others = tuple(_name(fits[other]) for other in self.members if other != at)
        found = fit_of(fit.kind, fit.group_shape, fit.points, self.knots, self.line)
        if chosen:
            found = replace(
                found,
                alpha_interval_s=_both(found.alpha_interval_s, fit.alpha_interval_s),
                beta_interval_s_per_byte=_both(found.beta_interval_s_per_byte, fit.beta_interval_s_per_byte),
            )
        return replace(
            found, outliers=fit.outliers, placement=fit.placement, num_groups=fit.num_groups, waiting_s=fit.waiting_s,
            shared_with=others,
        )  # fmt: skip


def _pools(pools: list[_Pool]) -> list[_Pool]:
    """Joined, the most alike first."""
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[float, _Pool] | None] = {}
    while True:
        best: tuple[float, _Pool] | None = None
        for one, other in combinations(pools, 2):
            pair = one.members, other.members
            if pair not in known:
                known[pair] = one.with_other(other)
            found = known[pair]
            if found is not None and (best is None or found[0] > best[0]):
                best = found
        if best is None:
            return pools
        joined = best[1]
        pools = [pool for pool in pools if not set(pool.members) <= set(joined.members)] + [joined]


def _both(one: Interval | None, other: Interval | None) -> Interval | None:
    """The least interval that holds two."""
    return one and other and (min(one[0], other[0]), max(one[1], other[1]))


def _name(fit: CollectiveFit) -> str:
    return fit.kind if fit.placement is None else f"{fit.kind} {fit.placement}"
