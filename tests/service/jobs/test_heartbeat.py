"""Workers' heartbeats: who works, who hangs, and who is gone."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from autosbp.service.db import Database
from autosbp.service.jobs._job_rows import QueueLimits
from autosbp.service.jobs._runner import DurableRunner, RunnerOptions
from autosbp.service.jobs._worker_registry import WorkerRegistry
from autosbp.service.jobs.heartbeat import Heartbeat, unhealthy_workers
from tests.service.documents import wait_until

pytestmark = pytest.mark.integration


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_worker_is_well_as_long_as_it_beats(tmp_path: Path) -> None:
    clock = Clock()
    heartbeat = Heartbeat(tmp_path, 20.0, clock)
    assert unhealthy_workers(tmp_path, clock) == [f"no worker of {tmp_path} is running on this machine"]
    heartbeat.begin()
    heartbeat.beat()
    clock.now_s += 19
    assert unhealthy_workers(tmp_path, clock) == []
    clock.now_s += 2
    (ailment,) = unhealthy_workers(tmp_path, clock)
    assert ailment.endswith("has been stalled for 21 s")
    heartbeat.beat()
    assert unhealthy_workers(tmp_path, clock) == []
    heartbeat.end()
    assert len(unhealthy_workers(tmp_path, clock)) == 1


def test_workers_that_are_gone_or_elsewhere_do_not_count(tmp_path: Path) -> None:
    beat = "import sys; from pathlib import Path; from autosbp.service.jobs.heartbeat import Heartbeat; "
    program = f"{beat}one = Heartbeat(Path(sys.argv[1]), 20.0); one.begin(); one.beat()"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    (left,) = (tmp_path / "workers").iterdir()
    assert len(unhealthy_workers(tmp_path)) == 1
    mine = Heartbeat(tmp_path, 20.0)
    mine.begin()
    assert not left.exists()
    mine.beat()
    (path,) = (tmp_path / "workers").iterdir()
    elsewhere = {**json.loads(path.read_text()), "machine": "another", "beaten_s": -1e9}
    (tmp_path / "workers" / "elsewhere.json").write_text(json.dumps(elsewhere))
    (tmp_path / "workers" / "broken.json").write_text('{"pid":')
    assert unhealthy_workers(tmp_path) == []


def test_a_runner_is_not_well_while_one_of_its_threads_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, hangs = Database(f"sqlite:///{tmp_path / 'test.db'}"), threading.Event()
    database.upgrade()
    beat = WorkerRegistry.beat

    def hang(presence: WorkerRegistry) -> None:
        while hangs.is_set():
            time.sleep(0.01)
        beat(presence)

    monkeypatch.setattr(WorkerRegistry, "beat", hang)
    runner = DurableRunner(database, {}, tmp_path, RunnerOptions(QueueLimits(4, 4), lease_s=0.5))
    assert runner.unhealthy_reason() == "no job is running"
    runner.start()
    assert runner.unhealthy_reason() is None
    hangs.set()
    wait_until(lambda: (runner.unhealthy_reason() or "").startswith("the job runner has been stalled for"))
    hangs.clear()
    wait_until(lambda: runner.unhealthy_reason() is None)
    runner.stop()
    assert runner.unhealthy_reason() == "no job is running"
    database.close()
