"""``autosbp train``: real ranks that the command starts itself, and what is left of a run that is killed."""

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
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import GPT2LMHeadModel

from autosbp.utils.processes import start_ticks
from examples import train_gpt2

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
GPT2, OWN = "examples.train_gpt2:factory", "examples.train_own_data:factory"
STEPS = 8


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "autosbp", *arguments]


def planned(model: str, folder: Path) -> Path:
    path = folder / "plan.json"
    options = (
        "--cluster",
        "local:2",
        "--global-batch",
        "8",
        "--stages",
        "1",
        "--storage",
        "step",
        "--baselines",
        "none",
    )
    subprocess.run(command("plan", model, *options, "-o", str(path)), cwd=ROOT, check=True, capture_output=True)
    return path


def start(plan: Path, model: str, data: str, *options: str) -> subprocess.Popen[str]:
    asked = command("train", str(plan), "--model", model, "--data", data, "--log-every", "1", *options)
    return subprocess.Popen(asked, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def losses(folder: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in lines(folder) if "loss" in line}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """A run to its end: its folder, what it printed, and what it said."""
    folder = tmp_path_factory.mktemp("whole")
    running = start(
        planned(GPT2, folder),
        GPT2,
        "examples/data/shakespeare.txt",
        *(
            "--folder",
            str(folder),
            "--steps",
            str(STEPS),
            "--checkpoint-every",
            "2",
            "--eval-data",
            "LICENSE",
            "--json",
        ),
        *("--eval-every", "4", "--tensorboard", "--profile", "3", "--export", str(folder / "model.safetensors")),
    )
    out, said = running.communicate(timeout=170)
    assert running.returncode == 0, said
    return folder, json.loads(out), said


def test_a_run_reports_each_step_and_its_end(whole: Any) -> None:
    folder, result, said = whole
    assert list(losses(folder)) == list(range(1, STEPS + 1))
    assert result["step"] == STEPS and result["loss"] == losses(folder)[STEPS] < 5.5
    for line in (line for line in lines(folder) if "loss" in line):
        assert line["step_time_s"] > line["exposed_comm_s"] > 0
        assert line["tokens_per_s"] == pytest.approx(8 * train_gpt2.LENGTH / line["step_time_s"])
        assert 0 < line["mfu"] < 2 and line["memory_bytes"] > 2**20 and line["gradient_norm"] > 0
    assert [line["step"] for line in lines(folder) if "evaluation_loss" in line] == [4, STEPS]
    assert f"step {STEPS}/{STEPS} (100 %)" in said and "MFU" in said and "left" in said
    assert sorted(path.name for path in folder.glob("step-*")) == [f"step-{step}" for step in (4, 6, 8)]


def test_a_profile_and_tensorboard_hold_the_run(whole: Any) -> None:
    folder, _, _ = whole
    for rank in range(2):
        events = json.loads((folder / "profile" / f"rank-{rank}.json").read_text())["traceEvents"]
        assert {f"step {step}" for step in (3, 4, 5)} <= {event["name"] for event in events}
    board = EventAccumulator(str(folder / "tensorboard"))
    board.Reload()
    assert [(event.step, event.value) for event in board.Scalars("loss")] == [
        (step, pytest.approx(loss)) for step, loss in losses(folder).items()
    ]


def test_transformers_loads_what_a_run_exports(whole: Any) -> None:
    folder, result, _ = whole
    module, _ = train_gpt2.factory()
    module.config.save_pretrained(folder)
    loaded, info = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    text = (ROOT / "LICENSE").read_bytes()
    count = len(text) // train_gpt2.LENGTH // 8 * 8
    tokens = torch.tensor(list(text[: count * train_gpt2.LENGTH])).view(count, -1)
    with torch.no_grad():
        loss = float(loaded(input_ids=tokens, labels=tokens).loss)
    assert loss == pytest.approx(result["evaluation_loss"], rel=1e-5)


def killed(plan: Path, folder: Path, steps: int) -> str:
    """Start a run, kill its launcher once it is beyond step ``steps`` and its newest checkpoint; what it had said."""
    running = start(plan, OWN, "LICENSE", "--folder", str(folder), "--steps", "100000", "--checkpoint-every", "5")
    while not newest(folder) or max(losses(folder), default=0) < max(steps, newest(folder)) + 2:
        assert running.poll() is None, running.communicate()
        time.sleep(0.01)
    ranks = [int(pid) for pid in Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()]
    assert len(ranks) >= 2
    os.kill(running.pid, signal.SIGKILL)
    deadline_s = time.monotonic() + 20
    while any(start_ticks(pid) is not None for pid in ranks):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return running.communicate()[1]


def newest(folder: Path) -> int:
    """Step of the newest complete checkpoint."""
    found = (path.name.removeprefix("step-") for path in folder.glob("step-*"))
    return max((int(step) for step in found if step.isdigit()), default=0)


@pytest.mark.long  # a killed run is also resumed in test_checkpoint.py
def test_a_run_that_is_killed_goes_on_with_the_same_losses_bit_for_bit(tmp_path: Path) -> None:
    plan, folder = planned(OWN, tmp_path), tmp_path / "run"
    killed(plan, folder, 5)
    before, done = losses(folder), newest(folder)
    assert list(before) == list(range(1, len(before) + 1)) and done >= 5
    said = killed(plan, folder, len(before))
    after = losses(folder)
    assert f"resumed from step {done} in" in said and list(after) == list(range(1, len(after) + 1))
    assert len(after) > len(before) and {step: after[step] for step in before} == before


def test_mistakes_are_named_before_and_after_ranks_start(whole: Any, tmp_path: Path) -> None:
    for options, limit in (
        (("--schedule", "step"), "expected one of cosine, linear, constant"),
        (("--export", str(tmp_path / "none" / "model.safetensors")), "existing, writable folder"),
        (("--folder", str(whole[0]), "--no-resume"), "it has checkpoints of steps [4, 6, 8]"),
    ):
        refused = start(whole[0] / "plan.json", GPT2, "LICENSE", *options)
        _, said = refused.communicate(timeout=120)
        assert refused.returncode == 2 and limit in said, said
