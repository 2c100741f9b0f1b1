"""The example scripts, as their first lines say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


def run(*command: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_script_learns_from_its_own_text_under_a_plan(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    model = "examples.train_own_data:factory"
    run(
        "autosbp",
        "plan",
        model,
        "--cluster",
        "local:2x2",
        "--global-batch",
        "16",
        "--baselines",
        "none",
        "-o",
        str(plan),
    )
    said = run("torch.distributed.run", "--nproc-per-node", "4", "examples/train_own_data.py", str(plan))
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", said)]
    assert len(losses) == 6 and losses[-1] < 2.6 < losses[0]


def test_the_gpt2_trains_on_a_text_and_leaves_its_weights(tmp_path: Path) -> None:
    plan, folder = tmp_path / "plan.json", tmp_path / "run"
    asked = ("--cluster", "local:2", "--global-batch", "8", "--baselines", "none", "-o", str(plan))
    run("autosbp", "plan", "examples.train_gpt2:factory", *asked)
    script = ("examples/train_gpt2.py", str(plan), "LICENSE", str(folder), "3")
    run("torch.distributed.run", "--nproc-per-node", "2", *script)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 1  # of the last step
    weights = load_file(folder / "model.safetensors")
    assert weights["transformer.wte.weight"].shape == (256, 128) and "lm_head.weight" not in weights
