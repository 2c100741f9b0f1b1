"""The example script, as its first lines say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
