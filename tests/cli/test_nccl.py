"""``calibrate`` with nccl-tests: what it ran and what it was given, and what stays of a run that failed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from autosbp.calibration._nccl_run import HOME
from autosbp.costmodel.calibration import Calibration
from tests.calibration.fake_nccl import LOG, install
from tests.cli.conftest import Run

pytestmark = pytest.mark.integration


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for nccl-tests' programs, which need GPUs."""
    folder = tmp_path / "nccl-tests" / "build"
    install(folder)
    monkeypatch.setenv(HOME, str(folder.parent))
    return folder


def test_a_node_is_calibrated_by_nccl_tests_into_a_file(run: Run, programs: Path, tmp_path: Path) -> None:
    path = tmp_path / "calib.json"
    done = run("calibrate", "--cluster", "dgx-h100:1", "--nccl-tests", "direct", "-o", path)
    assert done.exit_code == 0, done.stderr
    found = Calibration.from_dict(json.loads(path.read_text()))
    assert len(found.collectives) == 6 * 3 and "nccl-tests, started by direct" in found.notes[0]
    assert (tmp_path / "calib.json.nccl-tests" / "all_reduce-1x8.json").exists()


@pytest.mark.parametrize("to", ["file", "standard output"])
def test_the_error_names_the_output_of_a_failed_run(run: Run, programs: Path, tmp_path: Path, to: str) -> None:
    (programs / "behaviour").write_text("json wrong")
    path = tmp_path / "calib.json"
    more = ("-o", path) if to == "file" else ("--json",)
    done = run("calibrate", "--cluster", "dgx-h100:1", "--nccl-tests", "direct", *more)
    assert done.exit_code == 4 and not path.exists()
    message = done.stderr if to == "file" else json.loads(done.stdout)["error"]["message"]
    assert "all_reduce over 1x2: " in message and "7.0 wrong values at 262144 bytes" in message
    kept = re.search(r"output: (\S+)", message)
    assert kept is not None and (Path(kept[1]) / "all_reduce-1x2.json").exists()


def test_logs_are_read_and_groups_that_ran_alone_are_told(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "calib.json"
    done = run("calibrate", "--cluster", "dgx-h100:1", "--nccl-log", f"1x8={LOG}", "-o", path)
    assert done.exit_code == 0, done.stderr
    found = Calibration.from_dict(json.loads(path.read_text()))
    assert [(fit.kind, fit.group_shape, fit.num_groups) for fit in found.collectives] == [("all_reduce", (1, 8), None)]
    assert "has no summary: it may be incomplete" in found.notes[1]
    done = run("calibrate", "--cluster", "dgx-h100:8", "--nccl-log", f"8x1={LOG}", "-o", path)
    found = Calibration.from_dict(json.loads(path.read_text()))
    assert [fit.num_groups for fit in found.collectives] == [1]
    assert "all_reduce over 8x1: measured with 1 of the groups running" in found.notes[1] and found.notes[
        1
    ] in " ".join(done.stdout.split())


@pytest.mark.parametrize("cut", [400, 1100])
def test_a_log_that_is_cut_is_named_and_stores_nothing(run: Run, tmp_path: Path, cut: int) -> None:
    log, path = tmp_path / "all_reduce.txt", tmp_path / "calib.json"
    log.write_text(LOG.read_text()[:cut])
    done = run("calibrate", "--cluster", "dgx-h100:1", "--nccl-log", f"1x8={log}", "-o", path)
    assert done.exit_code == 4 and "error: all_reduce.txt" in done.stderr and not path.exists()


def test_two_logs_of_one_collective_and_shape_are_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "calib.json"
    logs = ("--nccl-log", f"1x8={LOG}", "--nccl-log", f"1x8={LOG}")
    done = run("calibrate", "--cluster", "dgx-h100:1", *logs, "-o", path)
    assert done.exit_code == 2 and "duplicate log of all_reduce over 1x8" in done.stderr and not path.exists()
