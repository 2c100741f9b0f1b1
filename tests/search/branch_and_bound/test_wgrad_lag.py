"""Zero-bubble plans under a memory limit: gradients of weights wait for as many passes as there is room for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autosbp.api import load_cluster, predict_costs
from autosbp.plan.plan import Costs
from tests.search.plans import graph_of, planned

ASKED: dict[str, Any] = {
    "cluster": "local:4",
    "stages": 4,
    "schedules": ("zero_bubble",),
    "global_batch": 32,
    "micro_batch": 1,
    "recompute": 0,
    "storage": "as_used",
}


def with_lag(lag: int | None) -> Costs:
    strategy = planned(**ASKED).strategy
    assert strategy.pipeline is not None
    changed = replace(strategy, pipeline=replace(strategy.pipeline, weights_lag=lag))
    return predict_costs(graph_of("gpt2-demo"), changed, load_cluster("local:4"))


def test_the_longest_lag_that_fits_is_found() -> None:
    free = planned(**ASKED)
    assert free.strategy.pipeline is not None
    assert free.strategy.pipeline.weights_lag is None
    known = {lag: with_lag(lag) for lag in range(4)}
    needs = [known[lag].memory_bytes_per_device for lag in range(4)]
    assert needs == sorted(needs)
    assert needs[0] < needs[3] == free.document["memory_bytes_per_device"]
    for limit in {*needs, needs[3] - 1}:
        plan = planned(**ASKED, memory_limit_bytes=limit)
        assert plan.strategy.pipeline is not None
        longest = max(lag for lag in range(4) if needs[lag] <= limit)
        assert plan.strategy.pipeline.weights_lag == (None if longest == 3 else longest)
        assert plan.document["step_time_s"] == known[longest].step_time_s
        assert plan.document["memory_bytes_per_device"] == needs[longest] <= limit
