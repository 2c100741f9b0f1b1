"""Published iteration times of Megatron-LM, predicted from one preset."""

from __future__ import annotations

import pytest

from autosbp.costmodel.optimizer import adam_step_bytes
from benchmarks.megatron_validation.__main__ import LIMITS, Comparison, compare, summary
from benchmarks.megatron_validation._predict import preset_curves

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def found() -> list[Comparison]:
    return compare(preset_curves())


def test_errors_are_within_the_limits(found: list[Comparison]) -> None:
    errors = summary(found)
    assert len(found) == 8
    assert all(errors[name] <= limit for name, limit in LIMITS.items()), errors


def test_parts_add_up_and_none_is_negative(found: list[Comparison]) -> None:
    for each in found:
        parts = [getattr(each.parts, name) for name in type(each.parts).__slots__]
        assert min(parts) >= 0.0 and sum(parts) == pytest.approx(each.parts.step_s)


def test_predicted_speedup_of_selective_recomputation_matches_the_published_one(found: list[Comparison]) -> None:
    for full, selective in zip(found[::2], found[1::2], strict=True):
        published = selective.row.iteration_s / full.row.iteration_s
        assert selective.parts.step_s / full.parts.step_s == pytest.approx(published, rel=0.03)


def test_models_are_slower_in_the_published_order(found: list[Comparison]) -> None:
    assert sorted(found, key=lambda each: each.row.iteration_s) == sorted(found, key=lambda each: each.parts.step_s)


def test_a_mixed_precision_step_moves_the_passes_of_its_optimizer() -> None:
    # copy 2 + 4, unscale 8, norm 4, clip 8, Adam 28, copy back 4 + 2, clear 2; float32 needs no copies and no scaling
    assert adam_step_bytes(2) == 62
    assert adam_step_bytes(4) == 4 + 8 + 28 + 4
