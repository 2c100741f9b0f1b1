"""Workers among each other: who is dead, and who must take itself for dead."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select, update

from autosbp.service.db import Database
from autosbp.service.jobs._worker_registry import WorkerRegistry, worker_ids
from autosbp.service.models import WorkerRow

pytestmark = pytest.mark.integration

LEASE_S = 0.6


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'test.db'}")
    database.upgrade()
    yield database
    database.close()


def dead(database: Database, observer: WorkerRegistry, *, all_others: bool = False) -> list[str]:
    with database.read() as session:
        return [row.id for row in observer.dead(session, all_others=all_others)]


def elsewhere(database: Database, presence: WorkerRegistry) -> None:
    """Have a worker be one of another machine, whose processes cannot be seen from here."""
    with database.write() as session:
        session.execute(update(WorkerRow).where(WorkerRow.id == presence.id).values(machine="another"))


def test_a_worker_on_another_machine_is_dead_when_its_beats_stand_still_for_a_lease(database: Database) -> None:
    one, two = WorkerRegistry(database, LEASE_S), WorkerRegistry(database, LEASE_S)
    one.beat()
    two.beat()
    elsewhere(database, two)
    assert dead(database, one) == []
    deadline_s = time.monotonic() + 2 * LEASE_S
    while time.monotonic() < deadline_s:
        two.beat()
        assert dead(database, one) == []
        time.sleep(LEASE_S / 6)
    begun_s, deadline_s = time.monotonic(), time.monotonic() + 60
    while not dead(database, one):
        assert time.monotonic() < deadline_s
        time.sleep(LEASE_S / 20)
    assert time.monotonic() - begun_s > 0.8 * LEASE_S
    two.beat()
    assert dead(database, one) == []
    time.sleep(1.2 * LEASE_S)
    assert dead(database, one) == [], "who could not look cannot tell whether others could write"


def test_a_worker_on_this_machine_is_dead_as_soon_as_its_process_is(database: Database) -> None:
    one, two = WorkerRegistry(database, 600.0), WorkerRegistry(database, 600.0)
    one.beat()
    two.beat()
    assert dead(database, one) == []
    with database.write() as session:  # a later process may have the same id
        session.execute(update(WorkerRow).where(WorkerRow.id == two.id).values(started=WorkerRow.started - 1))
    assert dead(database, one) == [two.id]
    assert dead(database, two, all_others=True) == [one.id], "where there can be only one, every other is dead"


def test_a_worker_that_cannot_beat_knows_it_before_the_others_do(database: Database) -> None:
    one = WorkerRegistry(database, LEASE_S)
    assert not one.held()
    one.beat()
    assert one.held()
    time.sleep(0.6 * LEASE_S)
    assert not one.held()
    one.beat()
    assert one.held()


def test_a_worker_that_was_taken_for_dead_is_one_again_at_its_next_beat(database: Database) -> None:
    one = WorkerRegistry(database, LEASE_S)
    one.beat()
    with database.write() as session:
        one.unregister(session)
        session.flush()
        assert worker_ids(session) == []
    one.beat()
    with database.read() as session:
        assert [row.beats for row in session.scalars(select(WorkerRow))] == [0]
        assert worker_ids(session) == [one.id]
