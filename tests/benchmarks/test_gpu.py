"""The benchmark of a GPU where there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.processes import environment

pytestmark = pytest.mark.integration

COMMAND = [sys.executable, "-m", "benchmarks.gpu"]
ENVIRONMENT = {**environment(), "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.some(2)
def test_the_gpu_benchmark_exits_with_an_error_without_a_gpu(as_json: bool) -> None:
    command = [*COMMAND, *(["--json"] if as_json else [])]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True, timeout=120)
    assert (json.loads(done.stdout)["error"] if as_json else done.stdout.strip()) == "no GPU"


@pytest.mark.long
def test_its_steps_run_on_a_cpu_too(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    command = [*COMMAND, "steps", "--device", "cpu", "-o", str(out)]
    subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True, timeout=240)
    rows = json.loads(out.read_text())["steps"]["rows"]
    assert [row["case"] for row in rows] == ["mlp-small float32 8", "gpt2-demo float32 2 in 2 recomputed offloaded"]
    assert rows[0]["memory_error"] == pytest.approx(0.0, abs=0.02)
    assert all(row["step_s"] > 0.0 for row in rows)


def test_a_part_that_is_not_there_is_named() -> None:
    done = subprocess.run([*COMMAND, "speed"], env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "'speed'" in done.stderr and "ops, steps, ranks" in done.stderr
