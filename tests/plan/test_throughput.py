"""Throughput, utilisation and price of a step."""

from __future__ import annotations

import pytest

from autosbp.plan.throughput import at_step_time, throughput


def test_tokens_hours_and_price_follow_from_the_step_time() -> None:
    found = throughput(0.5, 64, 1024, 0.2, 16.0)
    assert found["samples_per_s"] == 128
    assert found["tokens_per_s"] == 131_072
    assert found["mfu"] == pytest.approx(0.4)
    assert found["hours_per_billion_tokens"] == pytest.approx(1e9 / 131_072 / 3600)
    assert found["price_per_billion_tokens"] == pytest.approx(16 * 1e9 / 131_072 / 3600)


def test_models_without_a_sequence_have_samples_alone_and_clusters_without_a_price_no_price() -> None:
    found = throughput(0.5, 64, None, 0.2, 16.0)
    assert found["tokens_per_s"] is found["hours_per_billion_tokens"] is found["price_per_billion_tokens"] is None
    assert throughput(0.5, 64, 8, 0.2, None)["price_per_billion_tokens"] is None


def test_a_slower_strategy_of_the_same_batch_has_less_throughput_and_costs_more() -> None:
    document = {"step_time_s": 0.5, **throughput(0.5, 64, 1024, 0.2, 16.0)}
    assert at_step_time(document, 1.0) == pytest.approx(
        {name: value for name, value in throughput(1.0, 64, 1024, 0.2, 16.0).items() if name != "sequence_length"}
    )
    assert at_step_time({"step_time_s": 0.5}, 1.0) == {}
