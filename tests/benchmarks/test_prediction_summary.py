"""What ``benchmarks.prediction`` says of its rows: the order and errors of predictions, and what a second measurement of the
same strategies says of the first."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.prediction.__main__ import repeatability, summary


def rows(predicted: list[float], measured: list[float], again: list[float]) -> list[dict[str, Any]]:
    names = ("predicted_s", "measured_s", "again_s")
    return [
        dict(zip(names, row, strict=True), traffic_exact=True) for row in zip(predicted, measured, again, strict=True)
    ]


def test_predictions_are_compared_only_with_the_first_measurement() -> None:
    found = summary(rows([1.0, 2.0, 3.0, 4.0], [1.1, 1.0, 3.0, 5.0], [9.0, 8.0, 7.0, 6.0]), "predicted_s")
    assert found["kendall_tau"] == pytest.approx(4 / 6)
    assert found["regret"] == pytest.approx(0.1)


def test_equal_orders_in_both_measurements_allow_a_perfect_rank_correlation() -> None:
    found = repeatability(rows([4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0], [1.1, 2.2, 3.3, 4.4]))
    assert found["kendall_tau"] == 1.0 and found["regret"] == 0.0
    assert found["median_difference"] == pytest.approx(0.1) and found["p90_difference"] == pytest.approx(0.1)


def test_order_changes_between_measurements_lower_the_attainable_rank_correlation() -> None:
    found = repeatability(rows([1.0, 2.0, 3.0, 4.0], [1.0, 1.1, 3.0, 4.0], [1.2, 1.0, 3.0, 4.0]))
    assert found["kendall_tau"] == pytest.approx(4 / 6)
    assert found["regret"] == pytest.approx(0.2)
