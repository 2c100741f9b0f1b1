"""Rows of lists, and options, refusals and ops in words: units, states, gains."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from autosbp.api import load_cluster
from autosbp.costmodel.calibration import Calibration, CollectiveFit, Point
from autosbp.errors import InfeasibleError
from autosbp.service.models import CalibrationRow, JobRow, StrategyRow, TrialRow
from autosbp.service.services.list_details import StrategyDetails
from autosbp.service.web.presenters.calibration import calibration_view
from autosbp.service.web.presenters.list_rows import Cell, State, job_line, strategy_lines, trial_lines
from autosbp.service.web.presenters.request_words import op_words, option_facts, refusal_words


def done(kind: str, **result: Any) -> JobRow:
    """A job that has succeeded."""
    return JobRow(id="job-1", kind=kind, state="succeeded", payload={}, result=result, figures={}, message="succeeded")


def test_a_trial_that_failed_its_gate_is_no_success_in_any_list() -> None:
    details = {"plan-1": StrategyDetails("gpt2", "local:2", 16, 1.25)}
    row = TrialRow(
        id="tri-1", strategy_id="plan-1", baseline=None, label="main", passed=False, measured_step_time_s=0.2,
        relative_error=0.1, predicted={"step_time_s": 5e-5}, created_at=datetime.now(UTC), job=done("trial"),
    )  # fmt: skip
    (line,) = trial_lines([row, TrialRow(id="tri-2", strategy_id="deleted")], details)
    assert line.state == State("failed its gate", "failed")
    assert (line.model, line.cluster, line.batch.text, line.label) == ("gpt2", "local:2", "16", "main")
    assert (line.predicted, line.measured.text) == (Cell("50 µs", 5e-5), "200 ms")  # each with its own unit
    row.passed = True
    assert trial_lines([row], details)[0].state == State("passed its gates", "succeeded")
    assert job_line(row.job, {"job-1"}).state == State("failed its gate", "failed")
    assert job_line(row.job).state == State("succeeded", "succeeded")


def test_a_refused_search_is_what_its_capture_shows() -> None:
    job = done("capture", model_id="mod-1", search_problem={"title": "No feasible strategy", "detail": INFEASIBLE})
    job.payload = {"search": {}}
    line = job_line(job)
    assert line.state == State("search refused", "failed") and line.href == "/plan/captures/job-1"
    assert line.message.startswith("No feasible strategy: Memory limit of a device 79.65 GiB; at least 95.4")


INFEASIBLE = str(InfeasibleError("memory_limit_bytes", 85520809984, 102432047104, "nothing fits"))


def test_refusals_and_options_are_in_words_and_gib() -> None:
    assert refusal_words(INFEASIBLE) == (
        "Memory limit of a device 79.65 GiB; at least 95.40 GiB is required. nothing fits"
    )
    assert 95.40 * 2**30 >= 102432047104  # what is shown is enough where it is entered
    assert refusal_words("nodes: 3 is invalid") == "nodes: 3 is invalid"
    options = {
        "global_batch": 1024, "memory_limit_bytes": 85520809984, "time_limit_s": 20.0, "recompute": 0, "offload": True,
        "pins": {"head.weight": "S0"}, "baselines": ["fsdp2", "megatron_lm"], "stages": None, "storage": "use",
        "deterministic": False, "gap_tolerance": 2e-3, "seed": 12345,
    }  # fmt: skip
    assert [(one.term, one.value) for one in option_facts(options)] == [
        ("Samples per step", "1,024"),
        ("Memory limit of a device", "79.65 GiB"),
        ("Time limit", "20 s"),
        ("Recomputation", "none"),
        ("Optimizer state in host memory", "yes"),
        ("Fixed layouts", "head.weight: S0"),
        ("Baselines", "fsdp2, megatron_lm"),
        ("Parameter storage", "gathered per use (ZeRO-3)"),
        ("Gap tolerance", "0.20 %"),
        ("Seed", "12345"),
    ]


def test_timed_ops_are_named_by_their_tensors() -> None:
    tensor = {"t": [8, 16], "d": "float32", "g": True}
    weight = {"t": [32, 16], "d": "float32", "g": True}
    key = json.dumps({"op": "aten.linear.default", "args": [tensor, weight, None], "kwargs": {}})
    assert op_words(key) == "linear of 8 × 16, 32 × 16 (float32)"
    assert op_words(json.dumps({"op": "aten.stack.default", "args": [[tensor, tensor], 0]})) == (
        "stack of 8 × 16, 8 × 16 (float32)"
    )
    assert op_words("custom") == "custom"


def test_a_calibration_whose_fit_explains_nothing_is_not_complete_in_green() -> None:
    cluster, points = load_cluster("local:2"), (Point(1024, 1e-3, 1e-4, 5), Point(2048, 1e-3, 1e-4, 5))
    good = CollectiveFit("all_reduce", (2,), 1e-3, 1e-9, 0.99, 0.0, 0.0, points)
    for fits, shown in (
        ((good,), ("complete", "good")),
        ((good, replace(good, kind="p2p", r2=-0.3)), ("poor fit", "bad")),
    ):
        document = Calibration(cluster, "gloo", "relative", fits).to_dict()
        row = CalibrationRow(
            id="cal-1", root_id="cal-1", cluster_id="clu-1", complete=True, num_collectives=1, num_ops=0, num_trials=0,
            document=document,
        )  # fmt: skip
        row.newest_id = "cal-1"
        (run,) = [one for one in calibration_view(row, 0).figures if one.label == "Run"]
        assert (run.value, run.tone) == shown
    assert "p2p over 2" in run.note


def test_strategies_of_a_list_have_units_and_their_gain() -> None:
    row = StrategyRow(
        id="plan-1", model_id="mod-1", cluster_id="clu-1", searcher="auto", step_time_s=5e-4, created_at=datetime.now(UTC),
        memory_bytes_per_device=2**31, comm_bytes_per_device=0,
    )  # fmt: skip
    (line,) = strategy_lines([row], {"plan-1": StrategyDetails("gpt2", "local:2", 1024, 1.25)})
    shown = [cell.text for cell in (line.batch, line.step, line.gain, line.memory, line.traffic)]
    assert shown == ["1,024", "500 µs", "1.25 ×", "2 GiB", "0 B"] and line.heading == "gpt2 on local:2"
    (alone,) = strategy_lines([row], {"plan-1": StrategyDetails("gpt2", "local:2", 8, None)})
    assert alone.gain == Cell("–", None)
