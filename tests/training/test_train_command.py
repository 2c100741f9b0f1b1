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
MODEL = "examples.train_gpt2:factory"
STEPS = 8


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "autosbp", *arguments]


def start(plan: Path, folder: Path, *options: str) -> subprocess.Popen[str]:
    asked = command(
        *("train", str(plan), "--model", MODEL, "--data", "examples/data/shakespeare.txt", "--folder", str(folder)),
        *("--steps", str(STEPS), "--log-every", "1", "--checkpoint-every", "2", *options),
    )
    return subprocess.Popen(asked, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def losses(folder: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in lines(folder) if "loss" in line}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
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
    subprocess.run(command("plan", MODEL, *options, "-o", str(path)), cwd=ROOT, check=True, capture_output=True)
    return path


@pytest.fixture(scope="module")
def whole(plan: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """A run to its end: its folder, what it printed, and what it said."""
    folder = tmp_path_factory.mktemp("whole")
    model = str(folder / "model.safetensors")
    options = ("--eval-data", "LICENSE", "--eval-every", "4", "--tensorboard", "--profile", "3", "--export", model)
    out, said = (running := start(plan, folder, "--json", *options)).communicate(timeout=170)
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


def test_a_run_that_is_killed_goes_on_with_the_same_losses_bit_for_bit(plan: Path, whole: Any, tmp_path: Path) -> None:
    running = start(plan, tmp_path)
    while len(losses(tmp_path)) < 5:
        assert running.poll() is None, running.communicate()
        time.sleep(0.02)
    ranks = [int(pid) for pid in Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()]
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    deadline_s = time.monotonic() + 20
    while any(start_ticks(pid) is not None for pid in ranks):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert not (tmp_path / f"step-{STEPS}").exists()
    again = start(plan, tmp_path)
    _, said = again.communicate(timeout=170)
    assert again.returncode == 0 and "resumed from step" in said, said
    assert losses(tmp_path) == losses(whole[0])


def test_mistakes_are_named_before_and_after_ranks_start(plan: Path, whole: Any, tmp_path: Path) -> None:
    for options, limit in (
        (("--schedule", "step"), "expected one of cosine, linear, constant"),
        (("--export", str(tmp_path / "none" / "model.safetensors")), "existing, writable folder"),
    ):
        refused = start(plan, tmp_path, *options)
        _, said = refused.communicate(timeout=60)
        assert refused.returncode == 2 and limit in said, said
    refused = start(plan, whole[0], "--no-resume")
    _, said = refused.communicate(timeout=120)
    assert refused.returncode == 2 and "it has checkpoints of steps" in said, said
