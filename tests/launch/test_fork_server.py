"""Ranks that are forks of one process: how they end, and that nothing of them stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from autosbp.launch import fork_server
from autosbp.launch.local import rank_environment, run_ranks
from autosbp.utils.processes import start_ticks

pytestmark = pytest.mark.integration

RANKS = "tests.testing.ranks"


def started(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "autosbp.launch.fork_server", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=rank_environment())


def ranks_in(folder: Path, count: int) -> list[int]:
    """Process ids that ranks have written, once all have."""
    deadline_s = time.monotonic() + 60
    while len(found := [path for path in folder.glob("here*") if path.read_text()]) < count:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return [int(path.read_text()) for path in found]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def gone_soon(pids: list[int]) -> bool:
    deadline_s = time.monotonic() + 20
    while (left := [pid for pid in pids if start_ticks(pid) is not None]) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return not left


def test_ranks_reduce_over_groups_and_end_well(tmp_path: Path) -> None:
    outcome = run_ranks(RANKS, ["times", str(tmp_path / "times.json")], 4, tmp_path / "log", timeout_s=60)
    assert (outcome.reason, outcome.log_tail) == ("", "")
    assert all(seconds > 0 for seconds in json.loads((tmp_path / "times.json").read_text()).values())


def test_the_rank_that_failed_first_is_named_behind_its_error(tmp_path: Path) -> None:
    outcome = run_ranks(RANKS, ["fail", "30"], 4, tmp_path / "log", timeout_s=60)
    assert outcome.reason == "a rank failed" and "ValueError: the root cause" in outcome.log_tail
    assert "rank 2 (process" in outcome.log_tail.splitlines()[-1]
    assert outcome.log_tail.endswith("failed with exit code 1")


def test_a_rank_that_a_signal_ends_is_named_and_ends_the_others(tmp_path: Path) -> None:
    began_s = time.monotonic()
    outcome = run_ranks(RANKS, ["be_killed"], 4, tmp_path / "log", timeout_s=60)
    assert outcome.reason == "a rank failed" and time.monotonic() - began_s < 50
    assert outcome.log_tail.startswith("rank 3 (process") and outcome.log_tail.endswith("was killed by SIGKILL")


def test_a_parent_of_ranks_that_a_signal_ends_is_told(tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_it() -> bool:
        if not killed and len(list(tmp_path.glob("here*"))) == 2:
            killed.append(parent_of(ranks_in(tmp_path, 2)[0]))
            os.kill(killed[0], signal.SIGKILL)
        return True

    outcome = run_ranks(RANKS, ["hang", str(tmp_path)], 2, tmp_path / "log", timeout_s=60, poll=kill_it)
    assert outcome.reason == "their parent process was killed by SIGKILL"
    assert gone_soon(ranks_in(tmp_path, 2))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopping_ends_all_ranks_even_a_suspended_one(tmp_path: Path, number: signal.Signals) -> None:
    with started("3", RANKS, "hang", str(tmp_path)) as process:
        pids = ranks_in(tmp_path, 3)
        os.kill(pids[0], signal.SIGSTOP)
        process.send_signal(number)
        assert process.wait(30) == 1
    assert all(start_ticks(pid) is None for pid in pids)


def test_no_rank_outlives_its_parent_even_a_suspended_one(tmp_path: Path) -> None:
    with started("2", RANKS, "hang", str(tmp_path)) as process:
        pids = ranks_in(tmp_path, 2)
        os.kill(pids[0], signal.SIGSTOP)
        process.kill()
    assert gone_soon(pids)


def test_ranks_end_with_the_command_that_asked_for_them(tmp_path: Path) -> None:
    call = (
        "import sys; from pathlib import Path; from autosbp.launch.local import run_ranks; folder = sys.argv[1]; "
        + (f"run_ranks({RANKS!r}, ['hang', folder], 2, Path(folder) / 'log', timeout_s=60)")
    )
    with subprocess.Popen([sys.executable, "-c", call, str(tmp_path)], env=rank_environment()) as command:
        pids = ranks_in(tmp_path, 2)
        agent = parent_of(pids[0])
        command.kill()
    assert gone_soon([*pids, agent])


def test_a_missing_module_starts_no_rank() -> None:
    with started("2", "tests.no_such_module") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.decode().count("Traceback") == 1 and "ModuleNotFoundError" in errors.decode()


def test_ranks_that_fail_at_the_same_time_are_all_waited_for() -> None:
    children = [subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) for _ in range(2)]
    for child in children:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    ranks = {child.pid: rank for rank, child in enumerate(children)}
    assert fork_server._watch(ranks, None, dist.HashStore()) == 1 and ranks == {}
    fork_server._stop_ranks(ranks)
    for child in children:
        child.returncode = 3  # it was waited for
