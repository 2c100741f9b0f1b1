"""Checkpoints of runs that are killed, and that go on under another plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autosbp.api import PlanOptions, capture_module, load_cluster, make_plan
from autosbp.launch.local import run_ranks
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


def train(
    folder: Path, plan: str, run: str, *, ranks: int = 4, dropout: float = 0.1, die_at: int = 0
) -> dict[str, str]:
    """Losses by step, in hexadecimal digits; of a run that died, none."""
    request = {"plan": plan, "folder": str(folder / run), "steps": STEPS, "dropout": dropout, "die_at": die_at}
    (folder / "request.json").write_text(json.dumps(request))
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
