"""Gates of a trial, and the reports of them that CI reads."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest

from autosbp import api
from autosbp.cli._earlier import passed_trials
from autosbp.cli._gates import Earlier, Limits, Nothing, check_gates, fraction
from autosbp.cli._github import summary
from autosbp.cli._labels import Labels, labels
from autosbp.client import Client
from autosbp.errors import InputError, TrialError
from tests.cli.conftest import Run
from tests.cli.test_trial import RESULT

REPORT = {**RESULT, "model": "tiny|net", "cluster": "local:2"}


@pytest.mark.parametrize(
    ("limits", "name", "value", "passed"),
    [
        (Limits(step_time_s=0.2), "max_step_time_s", 0.2, True),
        (Limits(step_time_s=0.1), "max_step_time_s", 0.2, False),
        (Limits(loss_difference=1e-6), "max_loss_difference", 1e-7, True),
        (Limits(loss_difference=1e-8), "max_loss_difference", 1e-7, False),
        (Limits(prediction_error=0.5), "max_prediction_error", 0.5, True),
        (Limits(prediction_error=0.49), "max_prediction_error", 0.5, False),
        (Limits(regression=0.26), "max_regression", 0.25, True),
        (Limits(regression=0.24), "max_regression", 0.25, False),
    ],
)
def test_a_gate_compares_with_its_limit(limits: Limits, name: str, value: float, passed: bool) -> None:
    match, gate = check_gates(RESULT, limits, Earlier(0.16, "main"))
    assert match.passed
    assert (gate.name, gate.passed) == (name, passed)
    assert gate.value == pytest.approx(value)


def test_a_faster_step_is_no_regression_and_the_gate_says_of_what() -> None:
    gate = check_gates(RESULT, Limits(regression=0.0), Earlier(0.4, "main"))[1]
    assert gate.passed
    assert gate.sentence == "50 % faster than 400 ms of main, at most 0 % slower"


def test_a_regression_without_an_earlier_trial_is_not_judged() -> None:
    gate = check_gates(RESULT, Limits(regression=0.05))[1]
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
        Limits(step_time_s=limit)


class Trials:
    """A service that lists these trials, newest first, of two strategies of one model on one cluster."""

    def __init__(self, *rows: tuple[str, str, str | None, bool | None]) -> None:
        """Of each its strategy, baseline, label and outcome; the first is tri-0, the newest."""
        self.rows = [
            {**trial(at), "strategy_id": strategy, "baseline": baseline, "label": label, "passed": passed}
            for at, (strategy, baseline, label, passed) in enumerate(rows)
        ]

    def trials(
        self, *, passed: bool, label: str | None, created_before: datetime, strategy_id: str | None = None, **_: int
    ) -> list[dict[str, Any]]:
        return [
            row
            for row in self.rows
            if row["passed"] is passed
            and (label is None or row["label"] == label)
            and (strategy_id is None or row["strategy_id"] == strategy_id)
            and datetime.fromisoformat(row["created_at"]) < created_before
        ]

    def models(self, name: str) -> list[dict[str, str]]:
        return [{"id": "mod-1"}] if name == "tiny" else []

    def strategies(self, model_id: str, cluster_id: str) -> list[dict[str, str]]:
        assert (model_id, cluster_id) == ("mod-1", "clu-77")
        return [{"id": "plan-1"}, {"id": "plan-2"}]


def trial(age: int) -> dict[str, Any]:
    created = datetime(2026, 1, 1, tzinfo=UTC) - timedelta(hours=age)
    return {"id": f"tri-{age}", "created_at": created.isoformat(), "measured_step_time_s": 1.0 + age}


def good(strategy: str = "plan-1", label: str | None = "main") -> tuple[str, None, str | None, bool]:
    return strategy, None, label, True


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([good()], ["tri-1"]),
        ([good("plan-2"), good()], ["tri-2"]),
        ([good("plan-9"), good("plan-2")], ["tri-2"]),
        ([("plan-1", None, "main", False), good()], ["tri-2"]),
        ([("plan-1", None, "main", None), good()], ["tri-2"]),
        ([good(label="7/merge"), good(label=None), good()], ["tri-3"]),
        ([("plan-1", "megatron", "main", True)], []),
        ([good(label="7/merge")], []),
        ([good()] * 7, ["tri-1", "tri-2", "tri-3", "tri-4", "tri-5"]),
    ],
    ids=[
        *(
            "of the strategy",
            "the strategy first",
            "of the model's name",
            "none that failed",
            "none that nobody judged",
        ),
        *("none of another label", "another baseline", "no label", "the last five"),
    ],
)
def test_a_trial_is_compared_with_the_last_ones_of_its_kind_that_passed(
    rows: list[tuple[str, str | None, str | None, bool | None]], found: list[str]
) -> None:
    plan = {"model": "tiny", "cluster": {"name": "local:2"}, "provenance": {"cluster_hash": "77"}}
    service = Trials(("plan-1", None, "7/merge", None), *rows)
    earlier = passed_trials(cast(Client, service), service.rows[0], plan, "main")
    if not found:
        assert isinstance(earlier, Nothing)
        assert earlier.sentence.startswith("no earlier trial labelled main of tiny on local:2 has passed its gates")
        return
    assert isinstance(earlier, Earlier) and list(earlier.trials) == found
    assert earlier.step_time_s == statistics.median(1.0 + int(name[4:]) for name in found)
    assert earlier.source.endswith(", ".join(found)) and "labelled main" in earlier.source


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, Labels(None, None)),
        ({"GITHUB_REF_NAME": "main", "GITHUB_BASE_REF": ""}, Labels("main", "main")),
        (
            {"GITHUB_REF_NAME": "7/merge", "GITHUB_HEAD_REF": "main", "GITHUB_BASE_REF": "main"},
            Labels("7/merge", "main"),
        ),
        ({"CI_COMMIT_BRANCH": "fix", "CI_DEFAULT_BRANCH": "main"}, Labels("fix", "main")),
        (
            {
                "CI_MERGE_REQUEST_REF_PATH": "refs/merge-requests/1/head",
                "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME": "main",
                "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "v2",
                "CI_DEFAULT_BRANCH": "main",
            },
            Labels("refs/merge-requests/1/head", "v2"),
        ),
        ({"GITHUB_REF_NAME": "b" * 255}, Labels("b" * 200, "b" * 200)),
    ],
)
def test_ci_tells_what_a_trial_is_run_for(environment: dict[str, str], found: Labels) -> None:
    assert labels(None, None, environment) == found
    assert labels("mine", "theirs", environment) == Labels("mine", "theirs")


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
    for limit, code in (("6%", 0), ("5%", 1)):
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
        raise TrialError("trial of plan-1: a rank failed\nend of the ranks' log:\n```\x1b[31mboom <&> 100%")

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
    expected = "100 ms was predicted, 200 ms measured: 50 %25 off, at most 60 %25"
    assert line == f"::notice title=autosbp%3A all gates passed::{expected}"
    assert (tmp_path / "summary.md").read_text().startswith("# before\n### autosbp trial of tiny on local:2: passed")


def test_a_summary_is_a_table_whatever_the_names_are() -> None:
    gate = check_gates(RESULT, Limits(regression=0.05), Earlier(0.1, "a|b"))[1]
    text = summary(REPORT, [gate, replace(gate, value=None, passed=True)])
    assert "of tiny\\|net on local:2: FAILED" in text
    rows = [line for line in text.splitlines() if line.startswith("| `max_regression`")]
    assert [row.replace("\\|", "").count("|") for row in rows] == [4, 4]
    assert "not judged" in rows[1]
