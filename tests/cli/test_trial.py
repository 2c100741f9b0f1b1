"""``trial`` and ``calibrate`` on two real ranks, their gates and failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autosbp import api
from autosbp.errors import CalibrationError, TrialError
from tests.cli.conftest import Kept, Run

pytestmark = pytest.mark.integration

RESULT: dict[str, Any] = {
    "plan_id": "plan-1",
    "num_ranks": 2,
    "step_time_s": {"median": 0.2, "iqr": 0.01, "steps": 5},
    "predicted_step_time_s": 0.1,
    "memory_bytes": 100,
    "predicted_memory_bytes": 100,
    "loss_difference": 1e-7,
    "collectives_match": True,
}


def test_a_trial_measures_the_plan_and_fails_the_gate_that_it_misses(kept: Kept, folder: Path) -> None:
    result = json.loads(kept.done.stdout)
    assert kept.done.exit_code == 1, kept.done.stderr
    assert result["plan_id"] == json.loads((folder / "plan.json").read_text())["plan_id"]
    assert result["collectives_match"] and result["step_time_s"]["steps"] == 4
    passed = {name: gate["passed"] for name, gate in result["gates"].items()}
    assert passed == {"collectives_match": True, "max_step_time_s": False, "max_loss_difference": True}
    assert (kept.folder / "ranks.log").exists()
    assert "lowered:" in kept.done.stderr


@pytest.mark.parametrize(
    ("change", "limit", "code"),
    [
        ({}, None, 0),
        ({}, "0.2", 0),
        ({}, "0.19", 1),
        ({"collectives_match": False}, None, 1),
    ],
)
def test_gates_decide_the_exit_code(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], limit: str | None, code: int
) -> None:
    monkeypatch.setattr(api, "run_trial", lambda *_, **__: {**RESULT, **change})
    gate = [] if limit is None else ["--max-step-time", limit]
    done = run("trial", folder / "plan.json", "--graph", folder / "graph.json", *gate)
    assert done.exit_code == code
    assert ("FAILED" in done.stdout) == bool(code)


def test_a_failed_trial_exits_with_4_and_shows_the_log(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise TrialError("trial of plan-1: a rank failed\nlast lines of the ranks' log:\nboom")

    monkeypatch.setattr(api, "run_trial", fail)
    done = run("trial", folder / "plan.json", "--graph", folder / "graph.json", "--json")
    assert done.exit_code == 4
    assert done.stderr == "error: trial of plan-1: a rank failed\nlast lines of the ranks' log:\nboom\n"
    assert json.loads(done.stdout)["error"]["type"] == "TrialError"


def test_a_baseline_is_run_in_the_plans_place(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[api.Plan] = []

    def keep(plan: api.Plan, *_: object, **__: object) -> dict[str, Any]:
        seen.append(plan)
        return RESULT

    monkeypatch.setattr(api, "run_trial", keep)
    plan = api.Plan.from_dict(json.loads((folder / "plan.json").read_text()))
    run("trial", folder / "plan.json", "--graph", folder / "graph.json", "--baseline", "data_parallel")
    assert seen[0].plan_id == plan.with_baseline("data_parallel").plan_id


def test_a_calibration_is_measured_planned_with_and_traced(run: Run, folder: Path, tmp_path: Path) -> None:
    path, plan_path, trace_path = tmp_path / "calib.json", tmp_path / "plan.json", tmp_path / "trace.json"
    done = run(
        *("calibrate", "--cluster", "local:2", "--sizes", "1024,16384,262144", "--point-s", 0.01, "--op-s", 0.005),
        *("--model", folder / "graph.json", "--global-batch", 64, "-o", path),
    )
    assert done.exit_code == 0, done.stderr
    assert "all_reduce" in done.stdout and "wrote" in done.stderr
    document = json.loads(path.read_text())
    assert document["ops"]
    graph = ("--graph", folder / "graph.json")
    planned = run(
        *("plan", folder / "graph.json", "--cluster", "local:2", "--global-batch", 64),
        *("--calibration", path, "-o", plan_path, "--json"),
    )
    assert json.loads(planned.stdout)["provenance"]["calibration_id"] == document["calibration_id"]
    refused = run("export", plan_path, "--to", "perfetto", *graph)
    assert refused.exit_code == 2 and document["calibration_id"] in refused.stderr
    traced = run("export", plan_path, "--to", "perfetto", *graph, "--calibration", path, "-o", trace_path)
    assert traced.exit_code == 0, traced.stderr
    events = [event for event in json.loads(trace_path.read_text())["traceEvents"] if event["ph"] == "X"]
    end_s = max(event["ts"] + event["dur"] for event in events) / 1e6
    assert end_s == pytest.approx(json.loads(planned.stdout)["step_time_s"], rel=1e-5)


def test_logs_of_nccl_tests_become_a_calibration(run: Run, tmp_path: Path) -> None:
    log = Path(__file__).parents[1] / "calibration" / "data" / "new_all_reduce_8gpu.txt"
    done = run("calibrate", "--cluster", "dgx-h100:2", "--nccl-log", f"1x8={log}", "-o", tmp_path / "c.json", "--json")
    document = json.loads(done.stdout)
    assert done.exit_code == 0
    assert [(fit["kind"], fit["group_shape"]) for fit in document["collectives"]] == [("all_reduce", [1, 8])]
    assert json.loads((tmp_path / "c.json").read_text()) == document
    planned = run("plan", "zoo:mlp-small", "--cluster", "dgx-h100:2", "--calibration", tmp_path / "c.json", "--json")
    assert json.loads(planned.stdout)["provenance"]["calibration_id"] == document["calibration_id"]


def test_a_failed_calibration_exits_with_4(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise CalibrationError("all_reduce over (2,): a rank failed")

    monkeypatch.setattr("autosbp.calibration.calibrate", fail)
    done = run("calibrate", "--cluster", "local:2", "--json")
    assert done.exit_code == 4
    assert done.stderr == "error: all_reduce over (2,): a rank failed\n"
