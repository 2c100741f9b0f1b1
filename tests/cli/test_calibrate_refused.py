"""``calibrate`` refuses, in one line and before any rank starts, what no rank could measure."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from autosbp import calibration
from tests.cli.conftest import Run
from tests.cli.processes import COMMAND, environment

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--cluster", "local:2", "--backend", "nccl"),
            "backend: 'nccl' is invalid: expected a CUDA device for each of 2 ranks; torch finds 0",
        ),
        (
            ("--cluster", "dgx-a100-80g:1"),
            "backend: 'nccl' is invalid: expected a CUDA device for each of 8 ranks; torch finds 0",
        ),
        (
            ("--cluster", "emulated:2x2", "--launcher", "emulated", "--backend", "nccl"),
            "backend: 'nccl' is invalid: expected gloo: emulated nodes",
        ),
        (
            ("--cluster", "dgx-a100-80g:1", "--backend", "gloo", "--model", "zoo:mlp-small", "--global-batch", "16"),
            "backend: 'gloo' is invalid: its ranks do not compute on ",
        ),
        (
            ("--cluster", "local:2", "--sizes", "1,2,3,4"),
            "sizes: [1, 2, 3, 4] is invalid: expected at least 3 different multiples of 8 bytes",
        ),
    ],
)
def test_impossible_measurements_are_refused_in_one_line(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(calibration, "measure", None)
    done = run("calibrate", *arguments, "-o", tmp_path / "calib.json")
    assert done.exit_code == 2, done.stderr
    assert done.stderr.startswith(f"error: {message}") and len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(
    (os.geteuid() != 0 or shutil.which("unshare") is None) and not os.environ.get("CI"), reason="needs root and unshare"
)
def test_an_interface_without_an_address_is_refused(tmp_path: Path) -> None:
    asked = ("calibrate", "--cluster", "local:2", "--interface", "lo", "-o", "calib.json")
    command = ["unshare", "--net", *COMMAND, *asked]  # where the loopback interface is there, but not up
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment(), timeout=90)
    assert done.returncode == 2
    limit = "expected a network interface with an address: there is none"
    assert done.stderr == f"error: interface: 'lo' is invalid: {limit}\n"
    assert list(tmp_path.iterdir()) == []
