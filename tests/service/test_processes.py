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

from autosbp.processes import start_ticks
from service.jobs._base import Interrupted, JobKind, Limits
from service.jobs._children import Children, Watch
from service.jobs._processes import OUTLIVES, TAG, descendants, kill_tagged
from service.jobs._turns import Turns
from tests.service.server import ROOT
from tests.service.tasks import kind

WAIT_S = 60.0


def watch(check: Callable[[], bool] = lambda: False) -> Watch:
    return Watch(check, lambda _message: None, lambda: None)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def limited(name: str, **limits: Any) -> JobKind:
    return replace(kind(name), limits=Limits(**limits))


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    children = Children("wrk-test", grace_s=0.5)
    yield children
    children.close()
    assert not descendants(os.getpid())


def test_what_a_task_found_is_in_its_file_before_anybody_is_told(children: Children, tmp_path: Path) -> None:
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
        ("greedy", {"memory_bytes": 3 * 2**30}, "more memory than it may have: 3221225472 bytes"),
        ("busy", {"cpu_s": 1.0}, "the job used 1 s of processor time"),
        ("stubborn", {"wall_s": 1.0}, "the job ran for 1 s"),
    ],
)
def test_a_job_beyond_its_limits_fails_and_says_which(
    children: Children, tmp_path: Path, name: str, limits: dict[str, Any], detail: str
) -> None:
    found = children.run(limited(name, **limits), {"pid": str(tmp_path / "pid")}, tmp_path / "outcome", watch())
    assert (found["op"], found["problem"]["type"]) == ("failed", "urn:autosbp:problem:job-limit"), found
    assert detail in found["problem"]["detail"]
    after = children.run(limited("echo"), {"a": 2}, tmp_path / "after", watch())
    assert after["result"] == {"a": 2}, "limits are a job's, not those of the next one in its process"


def test_whoever_loses_a_job_leaves_no_process_of_it(children: Children, tmp_path: Path) -> None:
    def lost() -> bool:
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            raise Interrupted("taken")
        return False

    with pytest.raises(Interrupted):
        children.run(kind("stubborn"), {"pid": str(tmp_path / "pid")}, tmp_path / "outcome", watch(lost))
    assert start_ticks(int((tmp_path / "pid").read_text())) is None


@pytest.mark.parametrize("name", ["stubborn", "deaf"])
def test_nothing_outlives_a_service_that_is_killed(tmp_path: Path, name: str) -> None:
    owner = f"wrk-{os.getpid()}-{name}"
    program = (
        "from pathlib import Path; from service.jobs._children import Children, Watch; from tests.service.tasks import kind\n"
        f"Children({owner!r}, 1.0).run(kind({name!r}), {{'pid': {str(tmp_path / 'pid')!r}}}, Path('/none'), "
        "Watch(lambda: False, print, lambda: None))"
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
        return subprocess.Popen(command, env={**os.environ, TAG: "wrk-gone", **env}, start_new_session=True)

    orphan, launched = start(), start(**OUTLIVES)
    until(lambda: kill_tagged("wrk-gone") == 1)
    assert orphan.wait() == -signal.SIGKILL
    assert launched.poll() is None
    launched.kill()
    launched.wait()


def test_a_measurement_has_the_machine_for_itself_and_lets_no_search_pass() -> None:
    turns, order, go = Turns(alone=True), list[str](), threading.Event()

    def take(lane: str, name: str) -> None:
        with turns.turn(lane, lambda: False):
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
    with turns.turn("plan", lambda: False), pytest.raises(Interrupted), turns.turn("measure", lambda: True):
        pass
    with Turns(alone=False).turn("plan", lambda: True), Turns(alone=False).turn("measure", lambda: True):
        pass
