"""Where commands write: output that cannot be written is an error, and nothing but files is replaced by files."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path

import pytest

from autosbp.cli._files import write_text
from autosbp.errors import InputError
from autosbp.utils.json_io import read_file
from tests.cli.processes import COMMAND, environment

pytestmark = pytest.mark.integration

PLAN = ("plan", "zoo:mlp-small", "--cluster", "local:2", "--global-batch", "16", "--baselines", "none", "--json")


def test_output_that_is_lost_is_an_error() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*COMMAND, *PLAN], stdout=full, stderr=subprocess.PIPE, env=environment(), timeout=90)
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[-1] == "error: cannot write to standard output: No space left on device"


def test_output_that_nobody_reads_ends_a_command_as_a_signal_would() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run([*COMMAND, *PLAN], stdout=closed, stderr=subprocess.PIPE, env=environment(), timeout=90)
    assert done.returncode == 141
    assert b"Error" not in done.stderr and b"error" not in done.stderr


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "a plan")
    reader.join(10)
    assert read == ["a plan"] and pipe.is_fifo()


def test_a_device_that_is_full_is_named(tmp_path: Path) -> None:
    link = tmp_path / "full"
    link.symlink_to("/dev/full")
    with pytest.raises(InputError, match="No space left"):
        write_text(link, "a plan")
    assert Path("/dev/full").is_char_device()


def test_output_through_a_symlink_goes_to_its_target(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, file = tmp_path / "link.json", tmp_path / "there" / "file.json"
    link.symlink_to(file)
    for text in ("new", "newer"):
        write_text(link, text)
        assert link.is_symlink() and file.read_text() == text
    assert [each.name for each in (tmp_path / "there").iterdir()] == ["file.json"]


@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_files_of_editors_that_begin_with_a_mark_are_read(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"cluster.{ending}"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps({"a": 1}).encode() + b"\r\n")
    assert read_file(file) == {"a": 1}
