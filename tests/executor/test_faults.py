"""Trials in which a rank is suspended, is killed or runs out of memory: they end soon, and name rank, step and collective."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autosbp.api import PlanOptions, load_cluster, make_plan, run_trial
from autosbp.errors import TrialError
from autosbp.executor.rank_monitor import SILENCE_S, VARIABLE
from autosbp.plan.plan import Plan
from autosbp.report.trial_gates import GateLimits, check_gates
from tests.executor.conftest import graph_of

pytestmark = pytest.mark.integration

POSITION = r"in step \d+, (before its first collective|after it issued \w+ of [\d.]+ [KM]?i?B over ranks [\d, ]+)"


@pytest.fixture(scope="module")
def plan() -> Plan:
    options = PlanOptions(global_batch=8, baselines=(), stages=1, storage="use", data_parallel=4)
    return make_plan(graph_of("mlp"), load_cluster("local:4"), None, options)


@pytest.fixture(scope="module")
def pipeline() -> Plan:
    options = PlanOptions(global_batch=8, baselines=(), stages=4, micro_batch=2)
    return make_plan(graph_of("mlp"), load_cluster("local:4"), None, options)


def rank_processes(folder: Path) -> list[int]:
    """Processes of the trial's ranks, in their order."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            is_one = str(folder / "request.json").encode() in path.read_bytes()
        except OSError:
            continue
        if is_one:
            found.append(int(path.parent.name))
    return sorted(found)[1:]  # the first one is their parent


class Disturbance:
    """Sends a signal to a rank once ``ready``; a trial's ``cancelled``."""

    def __init__(self, folder: Path, rank: int, number: signal.Signals, ready: Callable[[], bool]) -> None:
        self.folder, self.rank, self.number, self.ready, self.sent_s = folder, rank, number, ready, 0.0

    def __call__(self) -> bool:
        if not self.sent_s and self.ready():
            os.kill(rank_processes(self.folder)[self.rank], self.number)
            self.sent_s = time.monotonic()
        return False


def disturbed_trial(plan: Plan, folder: Path, rank: int, number: signal.Signals) -> tuple[str, float]:
    """The error of a trial of which a rank gets a signal in its steps, and the seconds from the signal to it."""
    lines: list[str] = []
    disturb = Disturbance(folder, rank, number, lambda: any(line.startswith("step 5:") for line in lines))
    with pytest.raises(TrialError) as caught:
        run_trial(plan, graph_of("mlp"), steps=100_000, workdir=folder, log=lines.append, cancelled=disturb)
    return str(caught.value), time.monotonic() - disturb.sent_s


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", ["plan", "pipeline"])
def test_a_suspended_rank_ends_the_trial_and_is_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    silence_s = 5.0
    monkeypatch.setenv(VARIABLE, str(silence_s))
    text, took_s = disturbed_trial(request.getfixturevalue(kind), tmp_path, 2, signal.SIGSTOP)
    silent = rf"rank 2 \(process \d+ on .+\) has been silent for \d+ s: suspended, dead or unreachable; last heard {POSITION}"
    assert re.search(silent, text), text
    assert re.search(rf"rank 1 ends the job {POSITION}", text), text
    assert took_s < 60 - (SILENCE_S - silence_s)  # with the default silence it is less than 60 s


def test_a_killed_rank_is_named_with_its_position(plan: Plan, tmp_path: Path) -> None:
    text, took_s = disturbed_trial(plan, tmp_path, 3, signal.SIGKILL)
    assert re.search(rf"rank 3 \(process \d+\) was killed by SIGKILL, last heard {POSITION}", text), text
    assert re.search(rf"rank \d failed {POSITION}", text), text  # a rank whose connection was lost
    assert took_s < 30


@pytest.mark.some(2)
@pytest.mark.parametrize(("how", "reason"), [("killed", "a rank failed"), ("raised", "can't allocate memory")])
def test_a_measurement_stays_if_one_device_runs_out_of_memory(
    how: str, reason: str, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILING_REFERENCE", how)
    library = "tests.executor.failing_reference"
    result = run_trial(plan, graph_of("mlp"), steps=3, warmup=1, workdir=tmp_path, libraries=[library])
    (said,) = result["differs_as"]
    assert said.startswith("The losses were not compared with one device: ") and reason in said
    assert result["step_time_s"]["steps"] == 3 and result["collectives_match"] and result["loss_difference"] is None
    assert all(gate.passed for gate in check_gates(result, GateLimits()))
    (_, gate) = check_gates(result, GateLimits(loss_difference=0.1))
    assert not gate.passed and gate.value is None and gate.sentence == said
