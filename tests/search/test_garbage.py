"""The collector's thresholds while plans are made, and afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from autosbp.search._garbage import THRESHOLDS, seldom_collected


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_thresholds_are_as_before_after_the_last_of_several_plans() -> None:
    gc.set_threshold(700, 10, 10)
    one, other = seldom_collected(), seldom_collected()
    one.__enter__()
    assert gc.get_threshold() == THRESHOLDS
    other.__enter__()
    one.__exit__(None, None, None)
    assert gc.get_threshold() == THRESHOLDS
    other.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)


def test_they_come_back_after_a_failure() -> None:
    gc.set_threshold(700, 10, 10)
    with pytest.raises(ValueError, match="no plan"), seldom_collected():
        raise ValueError("no plan")
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("asked", [(0, 10, 10), (2 * THRESHOLDS[0], 10, 10)])
def test_who_collects_never_or_more_seldom_still_does(asked: tuple[int, int, int]) -> None:
    gc.set_threshold(*asked)
    with seldom_collected():
        assert gc.get_threshold() == asked
