"""Fits: known alpha and beta come back, outliers do not decide, and unusable points are refused by name."""

from __future__ import annotations

import math
import random
from math import prod

import numpy as np
import pytest

from autosbp.calibration import fit_collective
from autosbp.calibration._measurements import Rows
from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.calibration import BETA_FLOOR_S_PER_BYTE, KINDS, Calibration, Point
from autosbp.costmodel.network import NetworkModel, alpha_count, beta_factor
from autosbp.errors import CalibrationError, InputError

pytestmark = pytest.mark.integration

SIZES = [2**power for power in range(10, 25, 2)]
ALPHA_S, BETA_S_PER_BYTE = 4e-4, 2e-9


def points(kind: str, shape: tuple[int, ...], noise: float = 0.0, seed: int = 0) -> list[Point]:
    source, ranks = random.Random(seed), prod(shape)
    exact = [alpha_count(kind, ranks) * ALPHA_S + beta_factor(kind, ranks) * size * BETA_S_PER_BYTE for size in SIZES]
    return [
        Point(size, time * math.exp(noise * source.gauss(0, 1)), 0.0, 10)
        for size, time in zip(SIZES, exact, strict=True)
    ]


@pytest.mark.parametrize("method", ["relative", "ols"])
@pytest.mark.parametrize("shape", [(2, 1), (2, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_exact_points_give_their_alpha_and_beta(kind: str, shape: tuple[int, ...], method: str) -> None:
    fit = fit_collective(kind, shape, points(kind, shape), method)
    assert fit.alpha_s == pytest.approx(ALPHA_S, rel=1e-6)
    assert fit.beta_s_per_byte == pytest.approx(BETA_S_PER_BYTE, rel=1e-6)
    assert fit.r2 == pytest.approx(1.0)
    assert fit.max_relative_error < 1e-6


def test_noise_of_ten_per_cent_moves_the_fit_by_less_than_twenty() -> None:
    for seed in range(20):
        fit = fit_collective("all_reduce", (4,), points("all_reduce", (4,), 0.1, seed))
        assert fit.alpha_s == pytest.approx(ALPHA_S, rel=0.2)
        assert fit.beta_s_per_byte == pytest.approx(BETA_S_PER_BYTE, rel=0.25)


def test_one_point_off_by_thirty_times_hardly_moves_the_fit() -> None:
    for index in range(len(SIZES)):
        data = points("all_gather", (4,), 0.02)
        data[index] = Point(SIZES[index], data[index].median_s * 30, 0.0, 10)
        fit = fit_collective("all_gather", (4,), data)
        assert fit.alpha_s == pytest.approx(ALPHA_S, rel=0.3)
        assert fit.beta_s_per_byte == pytest.approx(BETA_S_PER_BYTE, rel=0.3)


def test_plain_least_squares_gives_a_negative_alpha_where_the_default_does_not() -> None:
    data = points("all_reduce", (4,))
    data[-1] = Point(SIZES[-1], data[-1].median_s * 3, 0.0, 10)  # the largest message leaves the caches
    ols, relative = (fit_collective("all_reduce", (4,), data, method) for method in ("ols", "relative"))
    assert ols.alpha_s < 0 and ols.r2 > 0.97
    assert relative.alpha_s == pytest.approx(ALPHA_S, rel=0.1)
    assert relative.median_relative_error < 0.1 * ols.median_relative_error


def test_alpha_is_clamped_at_zero() -> None:
    data = [Point(size, 1e-12 * size**1.5, 0.0, 10) for size in SIZES]
    fit = fit_collective("p2p", (2,), data)
    assert fit.alpha_s >= 0 and fit.beta_s_per_byte > 0


def test_decreasing_times_give_the_minimum_beta_and_their_mean_as_alpha() -> None:
    data = [Point(size, 1e-3 - 1e-11 * size, 0.0, 10) for size in SIZES]
    fit = fit_collective("p2p", (2,), data)
    assert fit.beta_s_per_byte == pytest.approx(BETA_FLOOR_S_PER_BYTE)
    assert fit.alpha_s == pytest.approx(1e-3, rel=0.1)


def switched(seed: int, noise: float) -> list[Point]:
    """Three times the seconds per byte beyond 4 MiB."""
    source, sizes = random.Random(seed), [2**power for power in range(10, 27)]
    seconds = [1e-3 + 2e-9 * size + 4e-9 * max(size - 2**22, 0) for size in sizes]
    return [
        Point(size, time * math.exp(noise * source.gauss(0, 1)), 0.0, 10)
        for size, time in zip(sizes, seconds, strict=True)
    ]


def test_a_change_of_rate_is_found_where_it_is_and_costs_the_rate_beyond_it() -> None:
    for seed in range(20):
        fit = fit_collective("p2p", (2,), switched(seed, 0.03))
        (start, beta), *more = fit.knots
        assert start in (2**21, 2**22, 2**23) and not more
        assert fit.beta_s_per_byte == pytest.approx(2e-9, rel=0.2) and beta == pytest.approx(6e-9, rel=0.25)
        assert fit.max_relative_error < 0.2


def test_noise_alone_makes_no_knots_and_intervals_hold_the_truth() -> None:
    fits = [fit_collective("all_reduce", (4,), points("all_reduce", (4,), 0.1, seed)) for seed in range(100)]
    assert sum(bool(fit.knots) for fit in fits) <= 3
    for name, truth in (("alpha_interval_s", ALPHA_S), ("beta_interval_s_per_byte", BETA_S_PER_BYTE)):
        held = sum(getattr(fit, name)[0] <= truth <= getattr(fit, name)[1] for fit in fits)
        assert 85 <= held <= 100


def test_intervals_of_95_per_cent_hold_the_truth_that_often() -> None:
    held = [0, 0]
    for seed in range(1000):
        line = Rows.of("all_reduce", (4,), points("all_reduce", (4,), 0.1, seed)).fit(())
        for at, truth in enumerate((ALPHA_S, BETA_S_PER_BYTE)):
            low, high = line.interval(at)
            held[at] += low <= truth <= high
    assert all(935 <= count <= 965 for count in held), held


def test_predictions_of_a_fit_with_knots_never_fall_with_size() -> None:
    fit = fit_collective("reduce_scatter", (2, 2), switched(1, 0.2))
    cluster = load_cluster("local:2x2")
    network = NetworkModel(cluster, Calibration(cluster, "gloo", "relative", (fit,)))
    times = network.times_s("reduce_scatter", np.logspace(0, 9, 200), (2, 2))
    assert np.all(np.diff(times) >= 0)


def test_outliers_are_listed_by_size() -> None:
    data = points("all_gather", (4,), 0.02)
    data[3] = Point(SIZES[3], data[3].median_s * 30, 0.0, 10)
    assert fit_collective("all_gather", (4,), data).outliers == (SIZES[3],)


@pytest.mark.parametrize("method", ["relative", "ols"])
def test_extrapolation_beyond_flat_times_is_not_free(method: str) -> None:
    cluster, sizes = load_cluster("emulated:2x2"), (1024, 4096, 16384)
    data = [Point(size, 1.1e-3 - 1e-6 * at, 0.0, 10) for at, size in enumerate(sizes)]
    fit = fit_collective("all_gather", (2, 1), data, method)
    network = NetworkModel(cluster, Calibration(cluster, "gloo", method, (fit,)))
    for shape in ((2, 1), (2, 2)):
        inside, beyond = network.times_s("all_gather", np.array([16384.0, 2**30]), shape)
        described = NetworkModel(cluster).time_s("all_gather", 2**30 - 16384, shape)
        assert inside < 4e-3 and beyond == pytest.approx(inside + described, rel=0.01)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1e-3])
def test_an_invalid_time_names_the_measurement(bad: float) -> None:
    data = [*points("all_to_all", (2, 2))[:5], Point(4096, bad, 0.0, 10)]
    with pytest.raises(CalibrationError, match="all_to_all over 2x2, 4096 bytes"):
        fit_collective("all_to_all", (2, 2), data)


def test_too_few_points_or_sizes_name_the_measurement() -> None:
    with pytest.raises(CalibrationError, match="p2p over 2x1: 2 points are too few"):
        fit_collective("p2p", (2, 1), points("p2p", (2, 1))[:2])
    with pytest.raises(CalibrationError, match="of two sizes"):
        fit_collective("p2p", (2, 1), [Point(1024, 1e-3, 0.0, 1)] * 3)


def test_unknown_method_is_an_input_error() -> None:
    with pytest.raises(InputError, match="relative, ols"):
        fit_collective("p2p", (2,), points("p2p", (2,)), "lasso")
