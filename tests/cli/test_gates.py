"""Gates of a trial, and the reports of them that CI reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from autosbp import api
from autosbp.cli._ci_labels import CiLabels, resolve_labels
from autosbp.cli._github import summary
from autosbp.errors import InputError, TrialError
from autosbp.report.trial_gates import GateLimits, ReferenceTrial, check_gates, fraction
from tests.cli.conftest import Run
from tests.cli.test_trial import RESULT

REPORT = {**RESULT, "model": "tiny|net", "cluster": "local:2"}


@pytest.mark.parametrize(
    ("limits", "name", "value", "passed"),
    [
        (GateLimits(step_time_s=0.2), "max_step_time_s", 0.2, True),
        (GateLimits(step_time_s=0.1), "max_step_time_s", 0.2, False),
        (GateLimits(loss_difference=1e-6), "max_loss_difference", 1e-7, True),
        (GateLimits(loss_difference=1e-8), "max_loss_difference", 1e-7, False),
        (GateLimits(prediction_error=0.5), "max_prediction_error", 0.5, True),
        (GateLimits(prediction_error=0.46), "max_prediction_error", 0.5, False),
        (GateLimits(regression=0.26), "max_regression", 0.25, True),
        (GateLimits(regression=0.2), "max_regression", 0.25, False),
    ],
)
def test_a_gate_compares_with_its_limit(limits: GateLimits, name: str, value: float, passed: bool) -> None:
    match, gate = check_gates(RESULT, limits, ReferenceTrial(0.16, "main"))
    assert match.passed
    assert (gate.name, gate.passed) == (name, passed)
    assert gate.value == pytest.approx(value)


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (
            GateLimits(step_time_s=0.199),
            "200 ms ± 7.021 ms per step, limit 199 ms; the difference is within the spread",
        ),
        (GateLimits(prediction_error=0.49), "error 50 % ± 3.51 %, limit 49 %; the difference is within the spread"),
        (
            GateLimits(regression=0.24),
            "25 % ± 4.39 % slower than 160 ms of main, limit 24 % slower; the difference is within the spread",
        ),
    ],
)
def test_a_time_passes_its_limit_within_the_uncertainty_of_its_median(limits: GateLimits, sentence: str) -> None:
    noisy = check_gates(RESULT, limits, ReferenceTrial(0.16, "main"))[1]
    assert noisy.passed and sentence in noisy.sentence
    many = {**RESULT, "step_time_s": {**RESULT["step_time_s"], "steps": 5000}}
    assert not check_gates(many, limits, ReferenceTrial(0.16, "main"))[1].passed


def test_losses_have_a_limit_by_default_the_rounding_of_the_precision() -> None:
    result = {**RESULT, "loss_difference": 0.017, "loss_bound": 1e-3}
    gate = check_gates(result, GateLimits())[1]
    assert (gate.name, gate.passed) == ("max_loss_difference", False)
    assert gate.sentence.endswith("by 0.017, the rounding of this precision explains at most 0.001")
    assert check_gates(result, GateLimits(loss_difference=0.02))[1].passed
    assert check_gates({**result, "loss_spread": 0.005}, GateLimits())[1].passed
    assert len(check_gates({**result, "loss_bound": None}, GateLimits())) == 1


def test_what_dropout_makes_of_a_loss_by_chance_is_no_difference_from_one_device() -> None:
    result = {**RESULT, "loss_difference": 0.02}
    assert not check_gates(result, GateLimits(loss_difference=1e-3))[1].passed
    gate = check_gates({**result, "loss_spread": 0.01}, GateLimits(loss_difference=1e-3))[1]
    assert gate.passed and "0.04 by chance" in gate.sentence
    assert not check_gates({**result, "loss_spread": 0.001}, GateLimits(loss_difference=1e-3))[1].passed


def test_a_faster_step_is_no_regression_and_the_gate_names_the_reference() -> None:
    gate = check_gates(RESULT, GateLimits(regression=0.0), ReferenceTrial(0.4, "main"))[1]
    assert gate.passed
    assert gate.sentence == "50 % ± 1.76 % faster than 400 ms of main, limit 0 % slower"


def test_a_regression_without_an_earlier_trial_is_not_judged() -> None:
    gate = check_gates(RESULT, GateLimits(regression=0.05))[1]
    assert (gate.value, gate.passed) == (None, True)


@pytest.mark.parametrize(("text", "value"), [("5%", 0.05), ("0.5 %", 0.005), (" 150%", 1.5), (None, None)])
def test_percentages_are_fractions(text: str | None, value: float | None) -> None:
    assert fraction(text, "max_regression") == value


@pytest.mark.parametrize("text", ["5", "0.05", "-5%", "five", "%", "1e3%", ""])
def test_a_percentage_has_its_sign(text: str) -> None:
    with pytest.raises(InputError, match="max_regression"):
        fraction(text, "max_regression")


@pytest.mark.parametrize("limit", [-1.0, float("nan"), float("inf")])
def test_a_limit_is_a_number(limit: float) -> None:
    with pytest.raises(InputError, match="max_step_time"):
        GateLimits(step_time_s=limit)


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, CiLabels(None, None)),
        ({"GITHUB_REF_NAME": "main", "GITHUB_BASE_REF": ""}, CiLabels("main", "main")),
        (
            {"GITHUB_REF_NAME": "7/merge", "GITHUB_HEAD_REF": "main", "GITHUB_BASE_REF": "main"},
            CiLabels("7/merge", "main"),
        ),
        ({"CI_COMMIT_BRANCH": "fix", "CI_DEFAULT_BRANCH": "main"}, CiLabels("fix", "main")),
        (
            {
                "CI_MERGE_REQUEST_REF_PATH": "refs/merge-requests/1/head",
                "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME": "main",
                "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "v2",
                "CI_DEFAULT_BRANCH": "main",
            },
            CiLabels("refs/merge-requests/1/head", "v2"),
        ),
        ({"GITHUB_REF_NAME": "b" * 255}, CiLabels("b" * 200, "b" * 200)),
    ],
)
def test_the_trial_label_comes_from_the_ci_environment(environment: dict[str, str], found: CiLabels) -> None:
    assert resolve_labels(None, None, environment) == found
    assert resolve_labels("mine", "theirs", environment) == CiLabels("mine", "theirs")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "run_trial", lambda *_, **__: RESULT)


@pytest.mark.usefixtures("measured")
def test_a_local_trial_is_compared_with_a_report(run: Run, folder: Path, tmp_path: Path) -> None:
    asked = ("trial", folder / "plan.json", "--graph", folder / "graph.json")
    assert run(*asked, "--report", tmp_path / "main.json").exit_code == 0
    slower = json.loads((tmp_path / "main.json").read_text())
    slower["step_time_s"]["median"] = 0.19
    (tmp_path / "main.json").write_text(json.dumps(slower))
    for limit, code in (("2%", 0), ("1%", 1)):
        done = run(*asked, "--baseline-report", tmp_path / "main.json", "--max-regression", limit, "--json")
        assert done.exit_code == code, done.stderr
        assert json.loads(done.stdout)["compared_with"] == {
            "step_time_s": 0.19,
            "source": f"plan-1 in {tmp_path / 'main.json'}",
            "trials": [],
        }


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(
    ("change", "field"),
    [({"cluster": "local:4"}, "cluster"), ({"model": "other"}, "model"), ({"step_time_s": {"median": 0}}, "median")],
)
def test_a_report_of_something_else_is_refused(
    run: Run, folder: Path, tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    asked = ("trial", folder / "plan.json", "--graph", folder / "graph.json")
    run(*asked, "--report", tmp_path / "main.json")
    (tmp_path / "main.json").write_text(json.dumps({**json.loads((tmp_path / "main.json").read_text()), **change}))
    done = run(*asked, "--baseline-report", tmp_path / "main.json")
    assert done.exit_code == 2
    assert field in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--max-regression", "5%"), "--baseline-report"),
        (("--max-regression", "5"), "a percentage"),
        (("--max-prediction-error", "much"), "a percentage"),
        (("--github",), "GITHUB_STEP_SUMMARY"),
        (("--junit", "/nowhere/out.xml"), "/nowhere/out.xml"),
        (("--report", "/nowhere/out.json"), "/nowhere/out.json"),
        (("--baseline-report", "/nowhere/main.json"), "/nowhere/main.json"),
    ],
)
@pytest.mark.usefixtures("measured")
def test_wrong_gates_are_bad_input(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], text: str
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    done = run("trial", folder / "plan.json", "--graph", folder / "graph.json", *arguments)
    assert done.exit_code == 2
    assert text in done.stderr


@pytest.mark.usefixtures("measured")
def test_junit_has_a_case_for_each_gate(run: Run, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.xml"
    done = run(
        *("trial", folder / "plan.json", "--graph", folder / "graph.json", "--junit", path),
        *("--max-step-time", 0.1, "--max-loss-difference", 1e-4),
    )
    assert done.exit_code == 1
    (suite,) = ElementTree.parse(path).getroot()  # noqa: S314  # our own file
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["3", "1", "0", "0"]
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert {name for name, case in cases.items() if case.find("failure") is not None} == {"max_step_time_s"}
    found = {each.get("name"): each.get("value") for each in cases["max_step_time_s"].iter("property")}
    assert found == {"limit": "0.1", "value": "0.2"}
    of_suite = suite.find("properties")
    assert of_suite is not None
    assert {"plan_id", "model", "cluster", "step_time_s.median"} <= {each.get("name") for each in of_suite}


def test_a_failed_trial_is_in_every_report(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise TrialError("trial of plan-1: a rank failed\nlast lines of the ranks' log:\n```\x1b[31mboom <&> 100%")

    monkeypatch.setattr(api, "run_trial", fail)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    done = run(
        *("trial", folder / "plan.json", "--graph", folder / "graph.json", "--junit", tmp_path / "out.xml", "--github"),
        *("--report", tmp_path / "report.json"),
    )
    assert done.exit_code == 4
    assert not (tmp_path / "report.json").exists()
    (error,) = ElementTree.parse(tmp_path / "out.xml").getroot().iter("error")  # noqa: S314  # our own file
    assert (error.get("type"), error.get("message")) == ("TrialError", "trial of plan-1: a rank failed")
    assert error.text is not None and "boom <&> 100%" in error.text
    assert "::error title=autosbp%3A the trial failed::trial of plan-1: a rank failed" in done.stderr
    assert (tmp_path / "summary.md").read_text().count("\n``````\n") == 2  # a fence longer than that of the log


@pytest.mark.usefixtures("measured")
def test_a_passed_trial_is_one_notice(run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "summary.md").write_text("# before\n")
    done = run(
        *("trial", folder / "plan.json", "--graph", folder / "graph.json", "--github", "--json"),
        *("--max-prediction-error", "60%"),
    )
    assert done.exit_code == 0
    json.loads(done.stdout)  # annotations are on standard error
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("::")]
    expected = "100 ms predicted, 200 ms measured: error 50 %25 ± 3.51 %25, limit 60 %25"
    assert line == f"::notice title=autosbp%3A all gates passed::{expected}"
    assert (tmp_path / "summary.md").read_text().startswith("# before\n### autosbp trial of tiny on local:2: passed")


def test_a_summary_is_a_table_whatever_the_names_are() -> None:
    gate = check_gates(RESULT, GateLimits(regression=0.05), ReferenceTrial(0.1, "a|b"))[1]
    text = summary(REPORT, [gate, replace(gate, value=None, passed=True)])
    assert "of tiny\\|net on local:2: FAILED" in text
    rows = [line for line in text.splitlines() if line.startswith("| `max_regression`")]
    assert [row.replace("\\|", "").count("|") for row in rows] == [4, 4]
    assert "not evaluated" in rows[1]
