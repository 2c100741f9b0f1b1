"""Collectives that cannot be told apart share a fit; those that can do not."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from autosbp.calibration import fit_collective, pool_fits
from autosbp.costmodel.calibration import CollectiveFit, Point
from autosbp.costmodel.network import alpha_count, beta_factor, fitted_s

pytestmark = pytest.mark.integration

SIZES = [1024 * 4**power for power in range(8)]
SHAPE = (2, 2)
ALPHA_S, BETA_S_PER_BYTE = 4e-4, 2e-9


def fit(kind: str, seed: int, faster: float = 1.0, noise: float = 0.05, knot: int | None = None) -> CollectiveFit:
    """Of noisy points; beyond ``knot`` bytes cost three times as much."""
    source, ranks = random.Random(seed), prod(SHAPE)

    def seconds(size: int) -> float:
        further = 0 if knot is None else 2 * max(size - knot, 0)
        exact = (
            alpha_count(kind, ranks) * ALPHA_S + beta_factor(kind, ranks) * (size + further) * BETA_S_PER_BYTE / faster
        )
        return exact * math.exp(noise * source.gauss(0, 1))

    return fit_collective(kind, SHAPE, [Point(size, seconds(size), 0.0, 30) for size in SIZES])


def pools(fits: list[CollectiveFit]) -> list[tuple[str, ...]]:
    return [tuple(sorted([one.kind, *one.shared_with])) for one in pool_fits(fits)]


def test_collectives_of_the_same_links_share_a_fit_that_is_nearer_to_the_truth() -> None:
    kinds = ("all_gather", "reduce_scatter", "all_reduce")
    together = apart = shares = 0.0
    for seed in range(20):
        fits = [fit(kind, 10 * seed + at) for at, kind in enumerate(kinds)]
        found = pool_fits(fits)
        shares += sum(bool(one.shared_with) for one in found) / len(found) / 20
        together += sum(abs(math.log(one.beta_s_per_byte / BETA_S_PER_BYTE)) for one in found)
        apart += sum(abs(math.log(one.beta_s_per_byte / BETA_S_PER_BYTE)) for one in fits)
        assert [one.points for one in found] == [one.points for one in fits]
        for one, other in zip(found, found[1:], strict=False):
            if other.kind in one.shared_with:
                assert (one.alpha_s, one.beta_s_per_byte) == (other.alpha_s, other.beta_s_per_byte)
    assert shares > 0.6 and together < 0.9 * apart


def test_a_shared_fit_has_narrower_intervals() -> None:
    fits = [fit(kind, at) for at, kind in enumerate(("all_gather", "reduce_scatter", "all_reduce"))]
    found = pool_fits(fits)
    assert found[0].shared_with
    for one, own in zip(found, fits, strict=True):
        (low, high), (least, most) = one.beta_interval_s_per_byte or (0, 0), own.beta_interval_s_per_byte or (0, 0)
        assert not one.shared_with or high - low < most - least


def test_intervals_of_shared_fits_have_the_coverage_of_separate_ones() -> None:
    """Fits that are joined for being near each other are not all near to the truth."""
    kinds = ("all_gather", "reduce_scatter", "all_reduce", "broadcast")
    held, num_fits, num_all = [0, 0], 0, 0
    for seed in range(80):
        found = pool_fits([fit(kind, 1000 * seed + at) for at, kind in enumerate(kinds)])
        num_fits, num_all = num_fits + len(found), num_all + (len(found[0].shared_with) == len(kinds) - 1)
        for one in found:
            (low, high), (least, most) = one.alpha_interval_s or (0, 0), one.beta_interval_s_per_byte or (0, 0)
            held[0] += low <= ALPHA_S <= high
            held[1] += least <= BETA_S_PER_BYTE <= most
    assert num_all >= 60 and min(held) >= 0.9 * num_fits, (num_all, held, num_fits)


def test_a_collective_that_is_50_percent_faster_keeps_its_own_fit() -> None:
    for seed in range(20):
        fits = [fit("all_gather", seed), fit("reduce_scatter", seed + 100), fit("all_reduce", seed + 200, faster=1.5)]
        found = pool_fits(fits)
        assert found[2] == fits[2]


def test_sharing_moves_no_prediction_by_more_than_a_tenth() -> None:
    """Points that a line fits badly hide a difference from any test of significance."""
    kinds = ("all_gather", "reduce_scatter", "all_reduce")
    sizes = np.array(SIZES, dtype=np.float64)
    for seed in range(10):
        fits = [fit(kind, 10 * seed + at, noise=0.4) for at, kind in enumerate(kinds)]
        for one, own in zip(pool_fits(fits), fits, strict=True):
            assert np.max(np.abs(fitted_s(one, sizes) / fitted_s(own, sizes) - 1)) <= 0.1 + 1e-9


def test_collectives_share_a_fit_with_knots_only_if_both_have_knots() -> None:
    straight = fit("all_gather", 1, noise=0.01)
    bent, too = (fit(kind, 2, noise=0.01, knot=2**18) for kind in ("reduce_scatter", "all_reduce"))
    assert not straight.knots and bent.knots and too.knots
    assert pools([straight, bent, too]) == [
        ("all_gather",), ("all_reduce", "reduce_scatter"), ("all_reduce", "reduce_scatter"),
    ]  # fmt: skip


def test_only_groups_of_one_shape_and_as_many_at_once_share() -> None:
    one = fit("all_gather", 1)
    others = [replace(one, num_groups=1), replace(one, group_shape=(2, 1))]
    assert all(not found.shared_with for found in pool_fits([one, *others]))
    strided, contiguous = replace(one, placement="strided"), replace(one, placement="contiguous")
    assert [found.shared_with for found in pool_fits([strided, contiguous])] == [
        ("all_gather contiguous",), ("all_gather strided",),
    ]  # fmt: skip


def test_collectives_with_different_link_traffic_do_not_share_fits() -> None:
    """An exchange of all over two nodes of two sends a third more through a node's link than a ring."""
    same = fit("all_gather", 1), replace(fit("all_gather", 1), kind="all_to_all")
    assert all(not found.shared_with for found in pool_fits(same))
    inside = [replace(one, group_shape=(1, 4)) for one in same]
    assert [found.shared_with for found in pool_fits(inside)] == [("all_to_all",), ("all_gather",)]


@pytest.mark.parametrize("seed", range(3))
def test_pooling_keeps_the_other_fields_of_a_fit(seed: int) -> None:
    slow = replace(fit("all_gather", seed), waiting_s=1e-3, outliers=(1024,))
    found = pool_fits([slow, fit("reduce_scatter", seed + 50)])
    assert (found[0].waiting_s, found[0].outliers, found[1].waiting_s) == (1e-3, (1024,), 0.0)
