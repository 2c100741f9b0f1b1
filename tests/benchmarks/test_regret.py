"""``benchmarks.regret``: a plan beside strategies that constraints can name, in a short form."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from autosbp.api import PlanOptions, capture, load_cluster, make_plan, predict_costs
from benchmarks.regret import __main__ as regret
from benchmarks.regret._cases import Case, cases
from benchmarks.regret._rivals import constrained_strategies

pytestmark = pytest.mark.integration

CASE = Case("mlp-small", "local:2x2", 64)
SECONDS = 3.0
UNTIL_ALL_S = 600.0
"""A limit that trying all strategies of the case (about 5 s) does not reach on a loaded machine."""


def test_every_rival_fits_and_has_the_cost_of_its_strategy() -> None:
    graph, cluster = capture("zoo:mlp-small"), load_cluster(CASE.cluster)
    limited = Case(CASE.model, CASE.cluster, CASE.batch, 4_000_000)
    free, free_tried = constrained_strategies(CASE, graph, UNTIL_ALL_S)
    found, tried = constrained_strategies(limited, graph, UNTIL_ALL_S)
    assert 0 < len(found) < len(free) == tried == free_tried
    for each in found[:8]:
        costs = predict_costs(graph, each.strategy, cluster)
        assert costs.step_time_s == each.step_time_s
        assert costs.memory_bytes_per_device <= 4_000_000
        assert "--stages" in each.name and "--micro-batch" in each.name
    assert len({each.name for each in found}) == len(found)


def test_no_rival_is_below_the_bound_of_the_plan() -> None:
    graph = capture("zoo:mlp-small")
    document = make_plan(graph, load_cluster(CASE.cluster), None, PlanOptions(global_batch=CASE.batch)).document
    found, _ = constrained_strategies(CASE, graph, UNTIL_ALL_S)
    assert min(each.step_time_s for each in found) >= document["lower_bound_s"]


def test_regret_compares_the_plan_with_its_fastest_rival() -> None:
    graph = capture("zoo:mlp-small")
    row = regret.measure(CASE, graph, SECONDS, None)
    assert set(row) == {
        "case", "plan_s", "step_time_s", "lower_bound_s", "gap", "stages", "ended_early", "baselines",
        "tried", "fit", "best_rival", "best_rival_s", "regret",
    }  # fmt: skip
    assert row["case"] == "mlp-small@local:2x2,64,fp32"
    assert 0 < row["fit"] <= row["tried"]
    assert row["regret"] == max(0.0, row["step_time_s"] / row["best_rival_s"] - 1)
    assert row["step_time_s"] <= min(row["baselines"].values())


def test_plans_of_earlier_releases_are_recosted() -> None:
    graph, cluster = capture("zoo:mlp-small"), load_cluster(CASE.cluster)
    earlier = make_plan(graph, cluster, None, PlanOptions(global_batch=CASE.batch, data_parallel=4, baselines=()))
    before = {"strategy": earlier.strategy.to_dict(), "seconds": 1.5}
    row = regret.measure(CASE, graph, SECONDS, before)
    step_s = predict_costs(graph, earlier.strategy, cluster).step_time_s
    assert (row["before"]["step_time_s"], row["before"]["plan_s"]) == (step_s, 1.5)
    quickest = min(row["best_rival_s"], row["step_time_s"])
    assert row["before"]["regret"] == max(0.0, step_s / quickest - 1)


def test_cases_without_a_plan_have_no_step_time() -> None:
    row = regret.measure(Case("mlp-small", "local:2x2", 64, 1000), capture("zoo:mlp-small"), SECONDS, None)
    assert set(row) == {"case", "infeasible"} and "memory_limit_bytes" in row["infeasible"]


def test_the_summary_is_of_the_rows_that_have_a_regret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def few() -> Iterator[Case]:
        yield CASE
        yield Case("mlp-small", "local:4", 64)

    monkeypatch.setattr(regret, "cases", few)
    assert regret.main(["local:2x2", "--seconds", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (row,) = document["rows"]
    assert document["summary"] == {
        "cases": 1, "median_regret": row["regret"], "worst_regret": row["regret"],
        "above_aim": int(row["regret"] > regret.AIM),
    }  # fmt: skip


def test_cases_are_named_apart() -> None:
    names = [each.name for each in cases()]
    assert len(names) == len(set(names)) > 80
