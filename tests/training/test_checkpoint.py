"""Checkpoints of runs that are killed, and that go on under another plan."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autosbp.api import PlanOptions, capture_module, load_cluster, make_plan
from autosbp.executor.rank_monitor import VARIABLE
from autosbp.launch.local import rank_environment, run_ranks
from tests.tiers import form
from tests.training.user_model import LanguageModel, example

pytestmark = pytest.mark.integration

STEPS = 8


def plan_of(folder: Path, name: str, cluster: str, dropout: float, **constraints: Any) -> str:
    graph = capture_module(LanguageModel(dropout=dropout).double(), example(), name="language-model")
    options = PlanOptions(global_batch=8, baselines=(), **constraints)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(make_plan(graph, load_cluster(cluster), None, options).document))
    return str(path)


def write_request(
    folder: Path, plan: str, run: str, *, dropout: float = 0.1, die_at: int = 0, number: str = "SIGKILL"
) -> None:
    request = {"plan": plan, "folder": str(folder / run), "steps": STEPS, "dropout": dropout, "die_at": die_at}
    (folder / "request.json").write_text(json.dumps({**request, "signal": number}))


def train(
    folder: Path, plan: str, run: str, *, ranks: int = 4, dropout: float = 0.1, die_at: int = 0
) -> dict[str, str]:
    """Losses by step, in hexadecimal digits; of a run that died, none."""
    write_request(folder, plan, run, dropout=dropout, die_at=die_at)
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    arguments = [str(folder / "request.json"), str(result)]
    outcome = run_ranks("tests.training.checkpoint_worker", arguments, ranks, folder / "log", timeout_s=300)
    assert bool(outcome.reason) == bool(die_at), outcome.log_tail
    return dict(json.loads(result.read_text())) if result.exists() else {}


def test_a_run_killed_at_any_step_goes_on_with_the_same_losses_bit_for_bit(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "sharded", "local:2x2", 0.1, stages=1, storage="step")
    whole = train(tmp_path, plan, "whole")
    assert list(whole) == [str(step) for step in range(1, STEPS + 1)]
    for die_at in form((6,), (3, 6)):
        assert train(tmp_path, plan, "killed", die_at=die_at) == {}
    rest = train(tmp_path, plan, "killed")
    assert rest and rest == {step: whole[step] for step in rest}
    assert int(min(rest, key=int)) in (6, 7)  # from the last complete checkpoint
    complete = sorted(path.name for path in (tmp_path / "killed").iterdir())
    assert complete == [f"step-{STEPS - 1}", f"step-{STEPS}"]


def test_a_run_goes_on_under_another_plan_and_number_of_ranks(tmp_path: Path) -> None:
    sharded = plan_of(tmp_path, "sharded", "local:2x2", 0.0, stages=1, storage="use", data_parallel=4)
    pipeline = plan_of(tmp_path, "pipeline", "local:2", 0.0, stages=2, micro_batch=4, schedules=("1f1b",))
    whole = train(tmp_path, sharded, "whole", dropout=0.0)
    train(tmp_path, sharded, "moved", dropout=0.0, die_at=4)
    rest = train(tmp_path, pipeline, "moved", dropout=0.0, ranks=2)
    assert rest
    for step, loss in rest.items():
        assert float.fromhex(loss) == pytest.approx(float.fromhex(whole[step]), rel=1e-9)


@pytest.mark.parametrize("number", ["SIGKILL", pytest.param("SIGSTOP", marks=pytest.mark.long)])
def test_torchrun_restarts_a_run_from_its_last_checkpoint(
    number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(tmp_path, "sharded", "local:2x2", 0.1, stages=1, storage="step")
    whole = train(tmp_path, plan, "whole")
    write_request(tmp_path, plan, "restarted", die_at=5, number=number)
    monkeypatch.setenv(VARIABLE, "5")
    arguments = [str(tmp_path / "request.json"), str(tmp_path / "result.json")]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", "--max-restarts=1"]
    command = [*torchrun, "-m", "tests.training.checkpoint_worker", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=rank_environment(), timeout=200)
    assert done.returncode == 0, done.stderr
    assert ("has been silent for" in done.stderr) == (number == "SIGSTOP")
    begun = [int(step) for step in re.findall(r"begins after step (\d+)", done.stdout)]
    assert begun[:4] == [0] * 4 and set(begun[4:]) <= {4, 5} and len(begun) == 8
    rest = json.loads((tmp_path / "result.json").read_text())
    assert rest == {step: whole[step] for step in rest} and list(rest)[-1] == str(STEPS)
