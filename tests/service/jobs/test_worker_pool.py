"""The processes of jobs: limits, and that none outlives its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autosbp.service.jobs._base import Interrupted, JobKind, Limits
from autosbp.service.jobs._machine_lock import MachineLock
from autosbp.service.jobs._processes import OUTLIVES_SERVICE, WORKER_VARIABLE, descendants, kill_tagged
from autosbp.service.jobs._worker_pool import TaskCallbacks, WorkerPool
from autosbp.utils.processes import start_ticks
from tests.service.server import ROOT
from tests.service.tasks import kind

pytestmark = pytest.mark.integration

WAIT_S = 60.0


def watch(check: Callable[[], bool] = lambda: False) -> TaskCallbacks:
    return TaskCallbacks(check, lambda _message: None, lambda: None)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def limited(name: str, **limits: Any) -> JobKind:
    return replace(kind(name), limits=Limits(**limits))


@pytest.fixture(scope="module")
def children() -> Iterator[WorkerPool]:
    children = WorkerPool("wrk-test", grace_s=0.5)
    yield children
    children.close()
    assert not descendants(os.getpid())


def test_results_are_stored_before_they_are_announced(children: WorkerPool, tmp_path: Path) -> None:
    path = tmp_path / "job" / "outcome.json"
    found = children.run(kind("echo"), {"a": 1}, path, watch())
    assert found == {"op": "done", "result": {"a": 1}}
    assert path.read_text() == '{"op":"done","result":{"a":1}}'
    failed = children.run(kind("surprise"), {}, tmp_path / "failed", watch())
    assert failed["op"] == "failed" and (tmp_path / "failed").exists()
    stopped = children.run(kind("hold"), {"gate": str(tmp_path / "none")}, tmp_path / "held", watch(lambda: True))
    assert stopped == {"op": "cancelled"} and not (tmp_path / "held").exists()


@pytest.mark.parametrize(
    ("name", "limits", "detail"),
    [
        ("greedy", {"memory_bytes": 3 * 2**30}, "exceeded its memory limit of 3221225472 bytes"),
        ("busy", {"cpu_s": 1.0}, "the job used 1 s of CPU time"),
        ("stubborn", {"wall_s": 1.0}, "the job ran for 1 s"),
    ],
)
def test_a_job_beyond_its_limits_fails_and_says_which(
    children: WorkerPool, tmp_path: Path, name: str, limits: dict[str, Any], detail: str
) -> None:
    found = children.run(limited(name, **limits), {"pid": str(tmp_path / "pid")}, tmp_path / "outcome", watch())
    assert (found["op"], found["problem"]["type"]) == ("failed", "urn:autosbp:problem:job-limit"), found
    assert detail in found["problem"]["detail"]
    after = children.run(limited("echo"), {"a": 2}, tmp_path / "after", watch())
    assert after["result"] == {"a": 2}, "limits are a job's, not those of the next one in its process"


def test_a_worker_that_loses_a_job_kills_its_processes(children: WorkerPool, tmp_path: Path) -> None:
    def lost() -> bool:
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            raise Interrupted("taken")
        return False

    with pytest.raises(Interrupted):
        children.run(kind("stubborn"), {"pid": str(tmp_path / "pid")}, tmp_path / "outcome", watch(lost))
    assert start_ticks(int((tmp_path / "pid").read_text())) is None


@pytest.mark.some(2)
@pytest.mark.parametrize("name", ["stubborn", "deaf"])
def test_nothing_outlives_a_service_that_is_killed(tmp_path: Path, name: str) -> None:
    owner = f"wrk-{os.getpid()}-{name}"
    program = (
        "from pathlib import Path; from autosbp.service.jobs._worker_pool import TaskCallbacks, WorkerPool\n"
        "from tests.service.tasks import kind\n"
        f"WorkerPool({owner!r}, 1.0).run(kind({name!r}), {{'pid': {str(tmp_path / 'pid')!r}}}, Path('/none'), "
        "TaskCallbacks(lambda: False, print, lambda: None))"
    )
    service = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
    pids = [*descendants(service.pid), int((tmp_path / "pid").read_text())]
    assert len(set(pids)) >= 2
    service.send_signal(signal.SIGKILL)
    service.wait()
    until(lambda: all(start_ticks(pid) is None for pid in pids))
    assert kill_tagged(owner) == 0


def test_what_worked_for_a_dead_worker_is_found_by_its_mark_but_what_is_meant_to_outlive_it_is_left() -> None:
    def start(**env: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        return subprocess.Popen(command, env={**os.environ, WORKER_VARIABLE: "wrk-gone", **env}, start_new_session=True)

    orphan, launched = start(), start(**OUTLIVES_SERVICE)
    until(lambda: kill_tagged("wrk-gone") == 1)
    assert orphan.wait() == -signal.SIGKILL
    assert launched.poll() is None
    launched.kill()
    launched.wait()


def test_a_measurement_has_the_machine_for_itself_and_lets_no_search_pass() -> None:
    turns, order, go = MachineLock(alone=True), list[str](), threading.Event()

    def take(lane: str, name: str) -> None:
        with turns.acquire(lane, lambda: False):
            order.append(name)
            go.wait(WAIT_S)

    threads = []
    for lane, name in (("plan", "a"), ("plan", "b"), ("measure", "m"), ("plan", "c")):
        threads.append(threading.Thread(target=take, args=(lane, name)))
        threads[-1].start()
        if name in "ab":
            until(lambda name=name: name in order)  # type: ignore[misc]
        else:
            time.sleep(0.1)
    assert order == ["a", "b"], "searches run beside each other"
    go.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert order == ["a", "b", "m", "c"]
    with turns.acquire("plan", lambda: False), pytest.raises(Interrupted), turns.acquire("measure", lambda: True):
        pass
    with (
        MachineLock(alone=False).acquire("plan", lambda: True),
        MachineLock(alone=False).acquire("measure", lambda: True),
    ):
        pass
