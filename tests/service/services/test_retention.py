"""The files of ended jobs: which are removed, which never are, and what a crash on the way leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from autosbp.service.db import Database
from autosbp.service.launchers._base import LauncherError
from autosbp.service.models import DEFAULT_TENANT, ClusterRow, JobRow, ModelRow, StrategyRow, TrialRow, now
from autosbp.service.services.retention import sweep
from autosbp.service.settings import Settings
from tests.service.server import ROOT

pytestmark = pytest.mark.integration

DAY = timedelta(days=1)


class Cluster:
    """As much of a launcher as a sweep asks."""

    name = "cluster"

    def __init__(self, *keys: str, answers: bool = True) -> None:
        self.keys, self.answers = keys, answers

    def active_keys(self) -> Sequence[str]:
        if not self.answers:
            raise LauncherError("away")
        return self.keys


class Store:
    """A database with jobs of some ages, and the folders that they have left."""

    def __init__(self, folder: Path) -> None:
        self.settings = Settings(data_dir=folder / "data", launcher="local", files_days=30)
        self.database = Database(self.settings.url)
        self.database.upgrade()
        with self.database.of(DEFAULT_TENANT).write() as session:
            session.add(ModelRow(id="m", name="m", source="zoo", graph_hash="g", summary={}, document={}))
            session.add(ClusterRow(id="c", name="c", cluster_hash="h", num_devices=1, document={}))
            session.flush()
            strategy = StrategyRow(id="s", model_id="m", cluster_id="c", searcher="exact", step_time_s=1.0, plan={})
            strategy.comm_bytes_per_device = strategy.memory_bytes_per_device = 0
            session.add(strategy)

    def job(self, name: str, state: str, age: timedelta) -> dict[str, Path]:
        """A trial's job that ended so long ago, and one folder of each kind."""
        ended = now() - age if state in ("succeeded", "failed", "cancelled") else None
        with self.database.of(DEFAULT_TENANT).write() as session:
            session.add(JobRow(id=f"job-{name}", kind="trial", payload={}, state=state, finished_at=ended))
            session.flush()
            session.add(TrialRow(id=f"tri-{name}", strategy_id="s", job_id=f"job-{name}", options={}, predicted={}))
        return self.folders(name)

    def folders(self, name: str) -> dict[str, Path]:
        data = self.settings.data_dir.resolve()
        found = {
            "trial": data / "trials" / f"tri-{name}",
            "calibration": data / "calibrations" / f"job-{name}",
            "outcome": data / "jobs" / f"job-{name}",
            "launch": data / "launches" / f"job-{name}-1",
        }
        for path in found.values():
            (path / "work").mkdir(parents=True)
            (path / "work" / "log").write_bytes(b"x" * 1000)
        return found

    def sweep(self, launcher: Cluster | None = None, **changes: object) -> set[Path]:
        settings = self.settings.model_copy(update=changes)
        return set(sweep(settings, self.database, launcher))  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    yield store
    store.database.close()


def test_files_go_when_their_job_ended_long_ago_and_never_before_it_has(store: Store) -> None:
    old = [store.job(state, state, 31 * DAY) for state in ("succeeded", "failed", "cancelled")]
    kept = [store.job("young", "succeeded", 29 * DAY), store.job("waits", "queued", 0 * DAY)]
    kept += [store.job("runs", "running", 0 * DAY), store.folders("of-another-service")]
    assert store.sweep(Cluster()) == {path for each in old for path in each.values()}
    assert not any(path.exists() for each in old for path in each.values())
    assert all((path / "work" / "log").exists() for each in kept for path in each.values())
    assert store.sweep(Cluster()) == set()


def test_what_the_cluster_works_on_or_does_not_tell_of_is_left(store: Store) -> None:
    one, two = store.job("one", "cancelled", 31 * DAY), store.job("two", "failed", 31 * DAY)
    rest = {each[name] for each in (one, two) for name in ("trial", "calibration", "outcome")}
    assert store.sweep(Cluster(answers=False)) == rest
    assert store.sweep(Cluster("job-one-1")) == {two["launch"]}
    assert store.sweep(Cluster()) == {one["launch"]}


def test_past_the_limit_the_oldest_go_first_but_not_in_their_first_hour(store: Store) -> None:
    first, second = store.job("first", "succeeded", 2 * DAY), store.job("second", "succeeded", DAY)
    last = store.job("last", "succeeded", timedelta(minutes=59))
    assert store.sweep(files_bytes=12_000) == set()
    assert store.sweep(files_bytes=8_000) == set(first.values())
    assert store.sweep(files_bytes=0) == set(second.values())
    assert all(path.exists() for path in last.values())


def test_a_sweep_that_dies_half_way_is_finished_by_the_next_one(store: Store) -> None:
    store.job("old", "succeeded", 31 * DAY)
    program = (
        "import os, shutil, signal, sys; from pathlib import Path; from autosbp.service.db import Database; "
        "from autosbp.service.services.retention import sweep; from autosbp.service.settings import Settings; "
        "settings = Settings(data_dir=Path(sys.argv[1]), files_days=30); "
        "shutil.rmtree = lambda path, **_: ((path / 'work' / 'log').unlink(), os.kill(os.getpid(), signal.SIGKILL)); "
        "sweep(settings, Database(settings.url), None)"
    )
    died = subprocess.run([sys.executable, "-c", program, str(store.settings.data_dir)], cwd=ROOT, env=dict(os.environ))
    assert died.returncode == -signal.SIGKILL
    (left,) = store.settings.data_dir.glob("*/.removed-*")
    assert left.is_dir() and not (left / "work" / "log").exists()
    assert len(store.sweep()) == 3
    assert not left.exists()
