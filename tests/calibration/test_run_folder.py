"""Folders of runs for which nobody named one: found again, kept while they are used, and removed in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from autosbp.calibration import calibrate
from autosbp.calibration._request import Request
from autosbp.calibration._run_folder import temporary_run_folder
from autosbp.cluster.spec import load_cluster
from autosbp.errors import CalibrationError, InputError
from autosbp.utils.json_io import canonical
from autosbp.utils.tempdirs import KEPT_S, temporary_folder
from tests.cli.processes import environment

REQUEST = Request(load_cluster("local:2"), "gloo", (1024, 4096, 16384))


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def failed(request: Request) -> Path:
    """The folder of a run that has ended with a result."""
    with pytest.raises(CalibrationError), temporary_run_folder(request) as folder:
        lines = [{"request": request.request_id}, {"begin": "x"}, {"left_out": "no room"}]
        (folder / "results.jsonl").write_bytes(b"".join(canonical(line) + b"\n" for line in lines))
        (folder / "request.json").write_bytes(canonical(request.to_dict()))
        raise CalibrationError("a rank failed")
    return folder


def age(folder: Path, seconds: float) -> None:
    for path in (*folder.iterdir(), folder):
        os.utime(path, (time.time() - seconds,) * 2)


def test_a_run_that_ended_early_is_found_by_the_same_one_alone_and_removed_after_it(root: Path) -> None:
    left = failed(REQUEST)
    with temporary_run_folder(replace(REQUEST, way="another")) as folder:
        assert folder != left
    with temporary_run_folder(replace(REQUEST, timeout_s=1.0)) as folder:
        assert folder == left
    assert list(root.iterdir()) == []


def test_old_run_folders_are_removed_unless_in_use(root: Path) -> None:
    left = failed(REQUEST)
    age(left, KEPT_S + 60)
    with temporary_run_folder(REQUEST) as folder:
        assert list(root.iterdir()) == [folder] and folder != left
        (folder / "results.jsonl").write_bytes(b"")
        age(folder, KEPT_S + 60)
        with temporary_run_folder(REQUEST) as other:
            assert sorted(root.iterdir()) == sorted([folder, other])


def test_temporary_folders_go_with_their_block_and_old_ones_of_the_killed_with_another(root: Path) -> None:
    with temporary_folder("some-") as used:
        left = root / "some-left"
        left.mkdir()
        age(used, KEPT_S + 60)
        age(left, KEPT_S + 60)
        (root / "other").mkdir()
        age(root / "other", KEPT_S + 60)
        with temporary_folder("some-") as folder:
            assert sorted(root.iterdir()) == sorted([used, folder, root / "other"])
    assert list(root.iterdir()) == [root / "other"]


def test_a_temporary_folder_that_nobody_was_told_of_goes_sooner(root: Path) -> None:
    for name, age_s in (("some-left", 120), ("some-new", 0)):
        (root / name).mkdir()
        age(root / name, age_s)
    with temporary_folder("some-", kept_s=60) as folder:
        assert sorted(root.iterdir()) == sorted([folder, root / "some-new"])


def test_two_at_once_have_two_folders() -> None:
    left = failed(REQUEST)
    with temporary_run_folder(REQUEST) as one, temporary_run_folder(REQUEST) as other:
        assert one == left and other != left


def test_refused_requests_leave_no_folder(root: Path) -> None:
    with pytest.raises(InputError, match="ranks can start"):
        calibrate(load_cluster("local:2"), max_ranks=1)
    assert list(root.iterdir()) == []


@pytest.mark.clock
@pytest.mark.long
def test_a_killed_run_without_a_named_folder_is_continued(root: Path) -> None:
    call = "from autosbp.cluster.spec import load_cluster; from calibration import calibrate; import sys\n" + (
        "calibrate(load_cluster('local:2'), sizes=(1024, 65536, 262144), variants=False, point_s=0.1,"
        " progress=lambda step: print(step.done, flush=True))"
    )
    command = [sys.executable, "-c", call]
    env = {**environment(), "TMPDIR": str(root)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        while int(killed.stdout.readline()) < 3:
            assert killed.poll() is None
        killed.send_signal(signal.SIGKILL)
    assert len(list(root.iterdir())) == 1
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
    assert int(done.stdout.split()[0]) >= 3
    assert list(root.iterdir()) == []
