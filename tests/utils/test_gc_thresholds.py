"""The collector's thresholds while plans are made, and afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from autosbp.utils.gc_thresholds import THRESHOLDS, raised_gc_thresholds


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_thresholds_are_as_before_after_the_last_of_several_plans() -> None:
    gc.set_threshold(700, 10, 10)
    one, other = raised_gc_thresholds(), raised_gc_thresholds()
    one.__enter__()
    assert gc.get_threshold() == THRESHOLDS
    other.__enter__()
    one.__exit__(None, None, None)
    assert gc.get_threshold() == THRESHOLDS
    other.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)


def test_gc_thresholds_are_restored_after_a_failure() -> None:
    gc.set_threshold(700, 10, 10)
    with pytest.raises(ValueError, match="no plan"), raised_gc_thresholds():
        raise ValueError("no plan")
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("asked", [(0, 10, 10), (2 * THRESHOLDS[0], 10, 10)])
def test_less_frequent_collection_settings_are_kept(asked: tuple[int, int, int]) -> None:
    gc.set_threshold(*asked)
    with raised_gc_thresholds():
        assert gc.get_threshold() == asked
