"""Tasks on two cores: as if one process had run them, whatever becomes of the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from autosbp.utils import parallel
from autosbp.utils.parallel import run_parallel, submit

pytestmark = pytest.mark.integration

two_cores = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs a second core"
)


def squares(count: int) -> list[Callable[[], int]]:
    return [partial(pow, at, 2) for at in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2, 7, 300])
def test_answers_come_in_the_order_of_the_tasks(count: int) -> None:
    assert run_parallel(squares(count)) == [at**2 for at in range(count)]


def who(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@two_cores
def test_two_processes_take_what_comes_next() -> None:
    ran = run_parallel([partial(who, 0.2)] * 6)
    assert len(set(ran)) == 2 and os.getpid() in ran


@two_cores
def test_a_long_task_leaves_the_others_to_the_other_process() -> None:
    ran = run_parallel([partial(who, 1.0), *[partial(who, 0.02)] * 9])
    assert len(set(ran[1:])) == 1 and ran[0] not in ran[1:]


def dies_elsewhere(parent: int, at: int) -> int:
    time.sleep(0.05)
    if os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return at


def test_tasks_of_a_killed_child_run_in_the_parent() -> None:
    assert run_parallel([partial(dies_elsewhere, os.getpid(), at) for at in range(8)]) == list(range(8))
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def refuses(at: int) -> int:
    if at in (3, 5):
        raise ValueError(f"task {at}")
    return at


def test_the_first_failing_task_is_reported() -> None:
    with pytest.raises(ValueError, match="task 3"):
        run_parallel([partial(refuses, at) for at in range(8)])


def test_without_a_fork_all_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(parallel.os, "fork", fork)
    assert set(run_parallel([partial(who, 0.0)] * 4)) == {os.getpid()}
    assert run_parallel(squares(9)) == [at**2 for at in range(9)]


def test_tasks_of_tasks_start_no_more_processes() -> None:
    ran = run_parallel([lambda: run_parallel([partial(who, 0.01)] * 3) for _ in range(4)])
    assert all(len(set(inner)) == 1 for inner in ran)
    assert len({pid for inner in ran for pid in inner}) <= 2


def test_no_descriptors_are_left_open() -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        run_parallel(squares(4))
    assert os.listdir("/proc/self/fd") == before


@two_cores
def test_a_task_that_was_begun_goes_on_beside() -> None:
    waited = []
    with submit(lambda: (time.sleep(0.3), os.getpid())) as pending:
        began = time.monotonic()
        time.sleep(0.3)
        assert pending.result(lambda: waited.append(0))[1] != os.getpid()
        assert time.monotonic() - began < 0.55 and pending.result() == pending.result()


@two_cores
def test_a_task_that_was_begun_shares_its_tasks_and_leaves_no_process_behind() -> None:
    def hangs() -> list[int]:
        return run_parallel([lambda: time.sleep(60) or 1, lambda: time.sleep(60) or 2])

    with submit(hangs):
        until = time.monotonic() + 20
        while len(found := _descendants(os.getpid())) < 2:
            assert time.monotonic() < until, "the task and the process it shares with"
            time.sleep(0.05)
    while any(map(_is_running, found)):
        assert time.monotonic() < until
        time.sleep(0.05)


@two_cores
def test_no_process_of_a_killed_one_goes_on() -> None:
    program = (
        "import time; from autosbp.utils.parallel import run_parallel, submit\n"
        "with submit(lambda: run_parallel([lambda: time.sleep(60)] * 2)) as pending: pending.result()"
    )
    until = time.monotonic() + 20
    with subprocess.Popen([sys.executable, "-c", program]) as run:
        while len(found := _descendants(run.pid)) < 2:
            assert time.monotonic() < until
            time.sleep(0.05)
        run.kill()
    while any(map(_is_running, found)):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_errors_of_a_background_task_are_raised_at_its_result() -> None:
    def fails() -> int:
        raise ValueError("of the task")

    with submit(fails) as pending, pytest.raises(ValueError, match="of the task"):
        pending.result()


def test_a_background_task_of_a_killed_process_runs_in_the_parent() -> None:
    home = os.getpid()

    def killed() -> int:
        if os.getpid() != home:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    with submit(killed) as pending:
        assert pending.result() == home


def test_without_a_fork_a_begun_task_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autosbp.utils.parallel._can_fork", lambda: False)
    with submit(os.getpid) as pending:
        assert not pending.in_background and pending.result() == os.getpid()


def _descendants(pid: int) -> list[int]:
    found = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return found + [each for child in found for each in _descendants(child)]


def _is_running(pid: int) -> bool:
    """Not gone, and no zombie that whoever reaps orphans has yet to see."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
