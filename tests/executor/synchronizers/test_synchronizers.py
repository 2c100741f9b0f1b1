"""On four real ranks: exact synchronizers equal one device, stale ones its delayed steps, lossy ones within bounds."""

from __future__ import annotations

import pytest

from autosbp.search.sync_builders import BUILDERS
from tests.executor.synchronizers.conftest import Reports

pytestmark = pytest.mark.integration

INEXACT = ("lossy", "stale")


def exact(reports: Reports) -> Reports:
    return {label: ranks for label, ranks in reports.items() if not label.startswith(INEXACT)}


@pytest.mark.parametrize("key", ["loss", "parameters"])
def test_training_equals_one_device(reports: Reports, key: str) -> None:
    errors = {label: max(rank[key] for rank in ranks) for label, ranks in exact(reports).items()}
    assert max(errors.values()) <= 1e-9, {label: error for label, error in errors.items() if error > 1e-9}


def test_every_builder_ran_on_every_model(reports: Reports) -> None:
    for model in ("mlp", "tables"):
        for name in BUILDERS:
            assert any(label.startswith(f"{model} {name}") for label in reports), (model, name)


def test_collectives_are_the_charged_ones_on_every_rank(reports: Reports) -> None:
    for label, ranks in reports.items():
        if "in rounds" in label:  # a round's rows are charged, and these batches touch more
            continue
        assert all(rank["match"] for rank in ranks), (label, ranks[0].get("issued"), ranks[0].get("expected"))


def test_every_kind_of_collective_was_exercised(reports: Reports) -> None:
    kinds = {kind for ranks in reports.values() for rank in ranks for kind in rank["kinds"]}
    assert kinds >= {"all_reduce", "all_gather", "reduce_scatter", "push", "pull", "p2p"}


def test_replicas_are_equal_bit_for_bit(reports: Reports) -> None:
    for label, ranks in reports.items():
        if label.startswith(("mlp", "tables", "lossy", "stale")) and "stored split" not in label:
            assert all(rank["digest"] == ranks[0]["digest"] for rank in ranks), label


def test_rows_take_further_rounds_where_a_batch_touches_more(reports: Reports) -> None:
    for name in ("sparse_all_gather", "parallax"):
        few, all_at_once = (reports[f"tables {name} {suffix}"] for suffix in ("in rounds", "128"))
        assert not few[0]["match"] and all_at_once[0]["match"]


def test_stale_training_equals_one_device_whose_parameters_lag(reports: Reports) -> None:
    for steps in (1, 2):
        for rank in reports[f"stale {steps}"]:
            assert max(rank["loss"], rank["parameters"]) <= 1e-9


@pytest.mark.parametrize(
    ("name", "bound"), [("fp16", 1e-3), ("bf16", 1e-2), ("fp16 hierarchical", 2e-3), ("power_sgd", 1.0), ("top_k", 1.0)]
)
def test_the_first_lossy_gradient_is_within_its_bound(reports: Reports, name: str, bound: float) -> None:
    errors = [rank["gradient"] for rank in reports[f"lossy {name}"]]
    assert 0.0 < max(errors) < bound


@pytest.mark.parametrize("name", ["power_sgd", "top_k", "power_sgd hierarchical", "fp16 server"])
def test_error_feedback_makes_the_mean_gradient_exact(reports: Reports, name: str) -> None:
    for rank in reports[f"lossy {name}"]:
        first, mean = rank["feedback"]
        assert mean < first / 2


def test_error_feedback_leaves_the_rounding_of_sums_in_bfloat16(reports: Reports) -> None:
    """Each rank corrects its own rounding; that of the sum, the same every time, is nobody's."""
    for rank in reports["lossy bf16"]:
        first, mean = rank["feedback"]
        assert 2**-11 < mean < first


@pytest.mark.parametrize("name", ["power_sgd", "top_k"])
def test_without_error_feedback_the_mean_gradient_stays_wrong(reports: Reports, name: str) -> None:
    with_it, without = (reports[f"lossy {name}{suffix}"][0]["feedback"][1] for suffix in ("", " without feedback"))
    assert without > 2 * with_it
