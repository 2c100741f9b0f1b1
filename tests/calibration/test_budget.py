"""The time box of a run is shared by its series, and what does not fit is left out."""

from __future__ import annotations

from calibration._budget import SeriesBudget
from calibration._timing import LEAST_CALLS


def test_a_size_leaves_what_it_does_not_need_to_the_larger_ones() -> None:
    budget = SeriesBudget(8.0, 4)
    assert budget.box_s(10.0) == 2.0
    budget.took(1024, 1e-3, 0.5)
    assert budget.box_s(10.0) == 7.5 / 3
    assert budget.box_s(1.0) == 1.0


def test_three_sizes_fit_whatever_they_take() -> None:
    budget = SeriesBudget(0.0, 5)
    for size in (1, 4, 16):
        assert budget.fits(size) and budget.box_s(1.0) == 0.0
        budget.took(size, 1.0, 9.0)
    assert not budget.fits(64)


def test_a_size_fits_while_its_fewest_calls_do() -> None:
    budget = SeriesBudget(100.0, 5)
    for size in (1, 4, 16):
        budget.took(size, 0.1, 1.0)
    limit = 97.0 / (LEAST_CALLS * 0.1) * 16
    assert budget.fits(int(limit)) and not budget.fits(int(limit) + 1)
