"""``benchmarks.search_scale`` plans from cold, in a process without torch."""

from __future__ import annotations

import sys

import pytest

from benchmarks.search_scale import Case, main, measure, plan_within, with_baselines

pytestmark = pytest.mark.integration


def test_a_case_is_planned_in_a_process_of_its_own() -> None:
    case = Case("zoo:mlp-small", "local:4", 64, 1.0)
    row = measure(case)
    assert row["seconds"] > row["load_s"] + row["plan_s"] > 0
    assert 0 <= row["gap"] < 1 and row["baselines"] == {}
    compared = with_baselines(case)
    assert compared["with_baselines_s"] > 0 and compared["peak_bytes"] > 0
    assert row["step_time_s"] <= min(compared["baselines"].values())


def test_a_changed_case_gets_the_same_plan_cold_and_warm() -> None:
    case = Case("zoo:mlp-small", "local:2x2", 64, 1.0)
    cold, warm = (measure(case, 2, 0.5, after=after) for after in (False, True))
    assert cold["step_time_s"] == warm["step_time_s"]
    assert cold["step_time_s"] != measure(case)["step_time_s"]


def test_a_case_is_planned_under_a_time_limit_too() -> None:
    case = Case("zoo:mlp-small", "local:4", 64, 1.0)
    assert plan_within(case, None) == {}
    row = plan_within(case, 1e-3)
    assert row["within_s"] == 1e-3 and row["within_step_time_s"] >= measure(case)["step_time_s"]
    assert row["within_gap"] is not None and 0 <= row["within_gap"] < 1


def test_an_unknown_case_is_refused_with_those_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["search_scale", "gpt5@moon"])
    with pytest.raises(SystemExit):
        main()
    assert "gpt5@moon: expected one of gpt2-1.5b@2x8" in capsys.readouterr().err
