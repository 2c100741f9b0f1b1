"""The benchmark of a GPU where there is none."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.processes import environment


@pytest.mark.parametrize("as_json", [False, True])
def test_without_a_gpu_it_says_so_and_stops(as_json: bool) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", *(["--json"] if as_json else [])]
    env = {**environment(), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=120)
    assert (json.loads(done.stdout)["error"] if as_json else done.stdout.strip()) == "no GPU"
