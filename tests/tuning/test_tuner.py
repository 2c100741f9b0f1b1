"""``tune`` on real ranks: its budget, failed trials, resumption after a kill, and the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autosbp.api import Cluster, LogicalGraph, Plan, Strategy, tune
from autosbp.cli import app
from autosbp.errors import TrialError
from autosbp.launch.local import rank_environment
from autosbp.tuning.options import TuneOptions
from autosbp.tuning.strategy_space import StrategySpace
from autosbp.tuning.summary import tuning_summary
from autosbp.tuning.trial_pool import TrialEffort, TrialPool
from autosbp.tuning.trial_store import TRIALS_FILE, Trial, TrialStore, read_trials
from autosbp.tuning.tuner import CONFIRMED, Tuner
from tests.tuning.conftest import OPTIONS

pytestmark = pytest.mark.integration

EFFORT = TrialEffort(steps=2, max_s=0.2)
TUNE = (
    "tune",
    "zoo:mlp-small",
    "--cluster",
    "local:2",
    "--global-batch",
    "8",
    "--steps",
    "2",
    "--trial-seconds",
    "0.2",
)


def test_a_search_is_never_slower_than_its_baselines_and_survives_failures(
    graph: LogicalGraph, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, count = TrialPool.measure, 0

    def sometimes(pool: TrialPool, strategy: Strategy) -> dict[str, Any]:
        nonlocal count
        count += 1
        if count in (2, 7):
            raise TrialError("a rank failed\nlast lines of the ranks' log:\nboom")
        return measure(pool, strategy)

    monkeypatch.setattr(TrialPool, "measure", sometimes)
    result = tune(graph, cluster, tmp_path, None, OPTIONS, TuneOptions(trials=15, effort=EFFORT))
    assert len(result.trials) == count == 15 and result.stopped == "trials"
    assert [at for at, trial in enumerate(result.trials) if trial.error] == [1, 6]
    assert "boom" in (result.trials[1].error or "")
    assert [trial.origin for trial in result.trials[-3:]] == [CONFIRMED] * 3
    assert result.best is not None and result.baseline is not None
    assert (result.best.step_time_s or 0) <= (result.baseline.step_time_s or 0)
    assert result.plan.strategy == Strategy.from_dict(result.best.strategy)
    assert Plan.from_dict(result.plan.to_dict()).plan_id == result.plan.plan_id
    summary = json.loads(json.dumps(tuning_summary(result.trials, result.stopped), allow_nan=False))
    curve = [each for each in summary["best_so_far_s"] if each is not None]
    assert curve == sorted(curve, reverse=True) and summary["num_failed"] == 2 and summary["speedup"] >= 1
    assert all(rate is None or 0 <= rate <= 1 for rate in summary["hit_rate"])


def test_a_killed_search_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "trials"
    command = [sys.executable, "-m", "autosbp", *TUNE, "--workdir", str(folder), "--trials", "40"]
    process = subprocess.Popen(command, env=rank_environment(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    path, deadline_s = folder / TRIALS_FILE, time.monotonic() + 90
    while not path.exists() or path.read_bytes().count(b"\n") < 6:
        assert process.poll() is None and time.monotonic() < deadline_s
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = read_trials(folder)
    report, plan = tmp_path / "report.svg", tmp_path / "plan.json"
    asked = [*TUNE, "--workdir", folder, "--trials", len(before) + 4, "--report", report, "-o", plan, "--json"]
    done = CliRunner().invoke(app, [str(each) for each in asked], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert read_trials(folder)[: len(before)] == before
    assert result["num_trials"] == len(before) + 4
    tried = [row["strategy_id"] for row in result["trials"] if row["origin"] != CONFIRMED]
    assert len(set(tried)) == len(tried)
    assert json.loads(plan.read_text())["plan_id"] == result["plan"]["plan_id"]
    assert report.read_text().startswith("<svg") and "Hit rate" in report.read_text()


@pytest.mark.parametrize(
    ("times_the_bound", "minutes", "reason"), [(1.0, None, "bound"), (1.5, 1e-9, "minutes"), (1.0, 1e-9, "minutes")]
)
def test_a_search_ends_at_the_plans_bound_or_after_its_minutes(
    graph: LogicalGraph, cluster: Cluster, plan: Plan, tmp_path: Path, times_the_bound: float, minutes: float | None,
    reason: str,
) -> None:  # fmt: skip
    bound_s, costs = plan.document["lower_bound_s"], {"step_time_s": plan.document["step_time_s"]}
    space = StrategySpace(graph, cluster, None, OPTIONS)
    pool = TrialPool(space.graph, 2, tmp_path)
    with TrialStore(tmp_path, {}) as store:
        store.append(Trial("plan", plan.document["strategy"], costs, step_time_s=times_the_bound * bound_s))
        tuner = Tuner(plan, space, store, pool, TuneOptions(trials=4, minutes=minutes), OPTIONS.gap_tolerance)
        assert tuner.run(lambda _: True) == reason
    assert pool.starts == 0


def test_unusable_options_are_named(tmp_path: Path) -> None:
    for change, field in (
        (("--trials", "0"), "trials"),
        (("--proposer", "best"), "proposer"),
        (("--launcher", "slurm"), "launcher"),
        (("--trial-timeout", "0"), "timeout_s"),
    ):
        done = CliRunner().invoke(app, [*TUNE, "--workdir", str(tmp_path), *change], catch_exceptions=False)
        assert done.exit_code == 2 and done.stderr.startswith(f"error: {field}: "), done.stderr
