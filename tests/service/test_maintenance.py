"""Chores: done again and again, by one process at a time, whatever one of them raises."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from autosbp.service.db import Database
from autosbp.service.launchers._base import UnavailableError
from autosbp.service.maintenance import Maintenance, MaintenanceTask, maintenance_tasks
from autosbp.service.models import ModelRow
from autosbp.service.settings import Settings
from tests.service.documents import wait_until
from tests.service.postgres import Postgres


def test_of_several_processes_one_at_a_time_does_a_chore(postgres: Postgres) -> None:
    url = postgres.database()
    counted, busy, crossed = [0, 0], threading.Lock(), list[int]()

    def work(at: int) -> None:
        if not busy.acquire(blocking=False):
            crossed.append(at)
            return
        counted[at] += 1
        time.sleep(0.05)
        busy.release()

    processes = [Database(url) for _ in counted]  # each has connections of its own, as a process has
    both = [
        Maintenance(each, [MaintenanceTask("x", lambda at=at: work(at), 0.01)]) for at, each in enumerate(processes)
    ]  # type: ignore[misc]
    for chores in both:
        chores.start()
    wait_until(lambda: min(counted) >= 5)
    for chores in both:
        chores.stop()
    assert crossed == []
    with processes[0].alone(1) as mine, processes[1].alone(1) as theirs, processes[1].alone(2) as another:
        assert (mine, theirs, another) == (True, False, True)
    for process in processes:
        process.close()


def test_a_chore_that_takes_long_keeps_nobody_from_making_an_index(postgres: Postgres) -> None:
    """Which waits for every transaction that began before."""
    database = Database(url := postgres.database())
    beside = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with database.alone(1) as mine, beside.connect() as connection:
        assert mine
        connection.execute(text("SET statement_timeout = 5000"))
        connection.execute(text("CREATE TABLE things (name TEXT)"))
        connection.execute(text("CREATE INDEX CONCURRENTLY of_names ON things (name)"))
    with database.alone(1) as mine:
        assert mine
    beside.dispose()
    database.close()


def test_a_lock_that_cannot_be_given_back_ends_with_its_connection(postgres: Postgres) -> None:
    database = Database(url := postgres.database())
    beside = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    others = text("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = 1")
    with pytest.raises(OperationalError), database.alone(1), beside.connect() as connection:
        connection.execute(others)
    with pytest.raises(ValueError, match="own"), database.alone(1), beside.connect() as connection:
        connection.execute(others)
        raise ValueError("the block's own")
    with database.alone(1) as mine:
        assert mine
    beside.dispose()
    database.close()


def test_a_chore_that_fails_is_tried_again_and_keeps_no_other_from_its_turn(tmp_path: Path) -> None:
    database, counted = Database(f"sqlite:///{tmp_path / 'test.db'}"), [0, 0, 0]

    def work(at: int, error: Exception | None) -> None:
        counted[at] += 1
        if error is not None:
            raise error

    errors = (UnavailableError("away"), RuntimeError("unforeseen"), None)
    chores = Maintenance(
        database,
        [MaintenanceTask(str(at), lambda at=at, error=error: work(at, error), 0.01) for at, error in enumerate(errors)],  # type: ignore[misc]
    )
    chores.start()
    wait_until(lambda: min(counted) >= 3)
    chores.stop()
    database.close()


def test_sqlites_log_is_cut_off_after_load(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    database = Database(settings.url)
    database.upgrade()
    log = tmp_path / "autosbp.db-wal"
    with database.read() as reader:
        reader.execute(text("SELECT count(*) FROM models")).all()  # keeps the log from being begun anew
        for number in range(40):
            with database.of("default").write() as session:
                document = {"text": "x" * 2**19}
                session.add(
                    ModelRow(id=f"m{number}", name="m", source="s", graph_hash="g", summary={}, document=document)
                )
        grown = log.stat().st_size
        database.checkpoint()
        assert log.stat().st_size == grown > 16 * 2**20, "somebody reads it"
    database.checkpoint()
    assert log.stat().st_size == 0
    with database.read() as session:
        assert session.scalar(text("SELECT count(*) FROM models")) == 40
    database.close()


def test_orphans_are_looked_for_where_there_is_a_launcher(tmp_path: Path) -> None:
    def names(**settings: object) -> list[str]:
        given = Settings(data_dir=tmp_path, **settings)  # type: ignore[arg-type]
        return [chore.name for chore in maintenance_tasks(given, Database(given.url))]

    assert names() == [
        "expired idempotent responses and audit entries",
        "old files",
        "files of deleted resources",
        "artifacts still to be stored",
        "old artifacts",
        "the database's log",
    ]
    assert names(launcher="local")[6:] == ["orphans on local"]
