"""Whatever happens to its owner, nothing of an emulated cluster stays: no namespace, no link, no process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autosbp.testing.emulated import EmulatedCluster
from autosbp.utils.processes import start_ticks
from tests.cli.processes import environment

pytestmark = pytest.mark.clock

NETNS = Path("/run/netns")
SWEEP = [sys.executable, "-m", "autosbp.testing.emulated", "--sweep"]


def wait_for(what: Callable[[], object], limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


@contextmanager
def owner(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has entered the block of an emulated cluster; killed at the end, if it is still there."""
    command = [sys.executable, "-m", "tests.testing.owner", str(folder), *arguments]
    with subprocess.Popen(command, env=environment()) as process:
        try:
            wait_for((folder / "namespaces").exists)
            yield process
        finally:
            process.kill()


def remains(pid: int) -> list[str]:
    return [name for name in os.listdir(NETNS) if name.startswith(f"autosbp-emu-{pid}-")]


def alive(pid: int) -> bool:
    return start_ticks(pid) is not None


def test_what_a_killed_owner_leaves_is_swept(can_emulate: None, tmp_path: Path) -> None:
    before = socket.if_nameindex()
    with owner(tmp_path, "1") as process, EmulatedCluster(ranks_per_node=1) as living:
        wait_for(lambda: len(list(tmp_path.glob("here*"))) == 2)
        ranks = [int(path.read_text()) for path in tmp_path.glob("here*")]
        pids = {int(pid) for name in remains(process.pid) for pid in _pids(name)}
        assert pids >= set(ranks) and len(pids) >= 4  # ranks and their torchruns
        stopped, other = ranks
        os.kill(stopped, signal.SIGSTOP)
        process.kill()
        process.wait()
        wait_for(lambda: not alive(other))  # by itself: nobody is left to end it
        assert len(remains(process.pid)) == 3 and alive(stopped)
        done = subprocess.run(SWEEP, env=environment(), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "removed 3 namespaces" in done.stderr
        assert remains(process.pid) == [] and not any(map(alive, pids))
        assert all((NETNS / name).exists() for name in living.namespaces)
    assert socket.if_nameindex() == before


def _pids(namespace: str) -> list[str]:
    return subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=True).stdout.split()


def test_the_next_start_sweeps_too(can_emulate: None, tmp_path: Path) -> None:
    with owner(tmp_path) as process:
        process.kill()
        process.wait()
        assert remains(process.pid)
        with EmulatedCluster(ranks_per_node=1):
            assert remains(process.pid) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_an_owner_that_is_asked_to_stop_leaves_nothing(
    can_emulate: None, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with owner(tmp_path) as process:
        assert remains(process.pid)
        process.send_signal(number)
        assert process.wait(30) in (code, 128 + number)
        assert remains(process.pid) == []


def test_a_killed_program_leaves_no_ranks_and_the_next_one_takes_its_folders_away(
    can_emulate: None, tmp_path: Path
) -> None:
    root = tmp_path / "temporary"
    root.mkdir()
    env = {**environment(), "TMPDIR": str(root)}
    program = [sys.executable, "-m", "autosbp.testing.emulated", "--nodes", "2", "--ranks", "1", "--"]
    with subprocess.Popen([*program, "tests.testing.ranks", "hang", str(tmp_path)], env=env) as killed:
        wait_for(lambda: len(list(tmp_path.glob("here*"))) == 2)
        ranks = [int(path.read_text()) for path in tmp_path.glob("here*")]
        assert all(map(alive, ranks)) and {path.name.split("-")[1] for path in root.glob("autosbp-*")} == {
            "emulated",
            "ranks",
        }
        killed.kill()
    wait_for(lambda: not any(map(alive, ranks)))
    wait_for(lambda: not any(map(_pids, remains(killed.pid))))  # torchruns write of the end of their ranks
    for path in (*root.glob("*/*"), *root.iterdir()):
        os.utime(path, (time.time() - 120,) * 2)
    done = subprocess.run([*program, "json.tool", "--help"], env=env, capture_output=True, timeout=60)
    assert done.returncode == 0
    assert list(root.glob("autosbp-*")) == [] and remains(killed.pid) == []
