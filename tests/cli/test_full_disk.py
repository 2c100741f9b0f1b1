"""Calibrations, imports of logs and fits whose disk is full: what was measured or there before is kept, and goes on."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

import autosbp.cli._calibrate as command
from autosbp.calibration import read_partial, read_results
from autosbp.calibration._nccl_run import HOME
from autosbp.costmodel.calibration import Calibration
from autosbp.errors import InputError
from autosbp.service.testing.disks import Disk, missing_programs
from tests.calibration.fake_nccl import LOG, install
from tests.cli.conftest import Run
from tests.cli.processes import COMMAND, environment

pytestmark = pytest.mark.integration

CALIBRATE = ("calibrate", "--cluster", "local:2", "--sizes", "1024,4096,16384", "--point-s", "0.01", "--no-variants")
TOO_LARGE, FULL = "File too large", "No space left on device"


def limited(most_bytes: int, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    """A command in whose files, and in those of its ranks, no more than so many bytes have room."""
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, env=environment(**more), timeout=90,
        preexec_fn=limit,
    )  # fmt: skip


def first_step(lines: Sequence[str]) -> int:
    """The number of the first measurement that a command tells of; short ones are over before it looks."""
    return int(next(filter(None, (re.match(r"\[(\d+)/", line) for line in lines)))[1])


@pytest.mark.clock
def test_a_calibration_whose_results_have_no_room_names_them_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    path, partial_ = tmp_path / "calib.json", tmp_path / "calib.json.partial"
    done = limited(2000, *CALIBRATE, "-o", path)
    assert done.returncode == 4 and not path.exists(), done.stderr
    assert f"a rank failed: cannot write {partial_}: {TOO_LARGE}; " in done.stderr
    assert f"error: rank 0: cannot write {partial_ / 'results.jsonl'}: {TOO_LARGE}" in done.stderr
    results = read_results(partial_ / "results.jsonl")
    assert len(results.made) >= 3 and not results.done and not read_partial(partial_).complete
    done = subprocess.run([*COMMAND, *CALIBRATE, "-o", str(path)], capture_output=True, text=True, env=environment())
    assert done.returncode == 0 and first_step(done.stderr.splitlines()) > len(results.made), done.stderr
    assert Calibration.from_dict(json.loads(path.read_text())).complete and not partial_.exists()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    lacks = missing_programs()
    if lacks and not os.environ.get("CI"):
        pytest.skip(f"a small disk needs {', '.join(lacks)}")
    with Disk.in_memory(tmp_path / "disk", 2**20) as found:
        yield found


@pytest.mark.clock
@pytest.mark.long
def test_a_disk_that_gets_full_meanwhile_is_named_and_the_run_goes_on_when_there_is_room(
    disk: Disk, tmp_path: Path
) -> None:
    asked = [*disk.command_prefix, *COMMAND, *CALIBRATE, "-o", str(tmp_path / "disk" / "calib.json")]
    with subprocess.Popen(asked, stderr=subprocess.PIPE, env=environment(), text=True) as first:
        assert first.stderr is not None
        lines = []
        for line in first.stderr:
            if not lines:
                disk.fill()
            lines.append(line)
    text = "".join(lines)
    assert first.returncode == 4 and f"cannot write {tmp_path / 'disk' / 'calib.json.partial'}: {FULL}" in text
    made = read_results(disk.path("calib.json.partial") / "results.jsonl").made
    assert sorted(each.name for each in disk.path("").iterdir()) == ["calib.json.partial", "filling"]
    disk.free()
    done = subprocess.run(asked, capture_output=True, text=True, env=environment(), timeout=90)
    assert done.returncode == 0 and first_step(done.stderr.splitlines()) > len(made), done.stderr
    assert Calibration.from_dict(json.loads(disk.path("calib.json").read_text())).complete
    assert [each.name for each in disk.path("").iterdir()] == ["calib.json"]


@pytest.mark.clock
def test_a_disk_that_is_full_before_is_named_and_keeps_what_is_there(disk: Disk, tmp_path: Path) -> None:
    disk.path("calib.json").write_text("an older one")
    disk.fill()
    asked = [*disk.command_prefix, *COMMAND, *CALIBRATE, "-o", str(tmp_path / "disk" / "calib.json")]
    done = subprocess.run(asked, capture_output=True, text=True, env=environment(), timeout=90)
    assert done.returncode == 2 and f"expected a writable folder ({FULL})" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert sorted(each.name for each in disk.path("").iterdir()) == ["calib.json", "filling"]
    assert disk.path("calib.json").read_text() == "an older one"


@pytest.mark.clock
def test_a_calibration_that_cannot_be_stored_keeps_what_was_measured_for_the_same_command(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _: object) -> None:
        raise InputError("output", str(path), f"cannot be written ({FULL})")

    path, partial_ = tmp_path / "calib.json", tmp_path / "calib.json.partial"
    with monkeypatch.context() as patched:
        patched.setattr(command, "write_json", full)
        done = run(*CALIBRATE, "-o", path)
    assert done.exit_code == 2 and FULL in done.stderr and not path.exists()
    assert f"measurements are kept in {partial_}; run the same command again" in done.stderr
    results = read_results(partial_ / "results.jsonl")
    assert results.done
    done = run(*CALIBRATE, "-o", path)
    assert done.exit_code == 0 and not re.search(r"^\[\d+/", done.stderr, re.MULTILINE), done.stderr
    found = Calibration.from_dict(json.loads(path.read_text()))
    assert found.complete and [fit.points for fit in found.collectives] == [
        tuple(points) for points in results.points.values()
    ]
    assert not partial_.exists()


def test_a_full_disk_leaves_existing_outputs_intact(run: Run, tmp_path: Path) -> None:
    path, page = tmp_path / "calib.json", tmp_path / "page.html"
    asked = ("calibrate", "--cluster", "dgx-h100:1", "--nccl-log", f"1x8={LOG}", "-o", path)
    for file, again in ((path, asked), (page, ("explain", path, "--report", page))):
        done = run(*again)
        assert done.exit_code == 0, done.stderr
        before = file.read_bytes()
        lost = limited(len(before) - 1, *again)
        assert lost.returncode == 2 and lost.stderr.startswith(f"error: output: '{file}' is invalid: ")
        assert TOO_LARGE in lost.stderr and "Traceback" not in lost.stderr
        assert file.read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["calib.json", "page.html"]


def test_a_full_disk_under_nccl_tests_output_is_named(tmp_path: Path) -> None:
    install(tmp_path / "nccl-tests", "text")
    asked = ("calibrate", "--cluster", "dgx-h100:1", "--nccl-tests", "direct", "-o", tmp_path / "calib.json")
    done = limited(1000, *asked, **{HOME: str(tmp_path / "nccl-tests")})
    assert done.returncode == 4 and not (tmp_path / "calib.json").exists()
    assert f"cannot write {tmp_path / 'calib.json.nccl-tests'}: {TOO_LARGE}" in done.stderr
    assert "all_reduce over 1x2: " in done.stderr
