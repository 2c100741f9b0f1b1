"""The migrations on SQLite; what holds on every database is in test_stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import func, inspect, select, text
from sqlalchemy.exc import IntegrityError

from autosbp.errors import InputError
from autosbp.service.db import Database, _alembic
from autosbp.service.models import CalibrationRow, ClusterRow, SearchRow

pytestmark = pytest.mark.integration


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'new' / 'folder' / 'test.db'}")
    yield database
    database.close()


def test_upgrading_twice_changes_nothing_and_downgrading_leaves_nothing(database: Database) -> None:
    assert not database.is_current()
    database.upgrade()
    database.upgrade()
    assert database.is_current()
    database.downgrade("base")
    with database.engine.connect() as connection:
        assert inspect(connection).get_table_names() == ["alembic_version"]
    assert not database.is_current()


def test_calibrations_of_the_first_schema_become_roots_of_their_families(database: Database) -> None:
    rows = {"cal-1": "{}", "cal-2": '{"corrections": [{"num_trials": 2}, {"num_trials": 5}]}'}
    with database.engine.begin() as connection:
        command.upgrade(_alembic(connection), "0001")
        connection.execute(text("INSERT INTO clusters VALUES ('clu-1', '2026-01-01', 'c', 'hash', 2, '{}')"))
        insert = text("INSERT INTO calibrations VALUES (:id, '2026-01-01', 'clu-1', NULL, 'gloo', 1, 15, 0, :document)")
        connection.execute(insert, [{"id": name, "document": document} for name, document in rows.items()])
    database.upgrade()
    with database.read() as session:
        found = session.scalars(select(CalibrationRow).order_by(CalibrationRow.id)).all()
        assert [(row.id, row.root_id, row.newest_id, row.num_trials) for row in found] == [
            ("cal-1", "cal-1", "cal-1", 0),
            ("cal-2", "cal-2", "cal-2", 5),
        ]
        assert [row.document for row in found][0] == {}
    database.downgrade("0001")
    with database.engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM calibrations")).scalar() == 2


def test_sqlite_runs_in_wal_mode_with_foreign_keys(database: Database) -> None:
    database.upgrade()
    with database.read() as session:
        assert session.scalar(text("PRAGMA journal_mode")) == "wal"
        assert session.scalar(text("PRAGMA foreign_keys")) == 1
        assert session.scalar(text("PRAGMA synchronous")) == 2, "FULL: what is accepted outlives a loss of power"
    with pytest.raises(IntegrityError), database.write() as session:
        session.add(SearchRow(id="sea-1", tenant="t", model_id="none", cluster_id="none", job_id="none", options={}))


def test_the_log_is_brought_into_the_file_beside_readers_and_writers(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'test.db'}")
    database.upgrade()
    database.checkpoint()
    for number in range(1200):  # more than SQLite's own limit of 1000 pages
        with database.write() as session:
            session.add(
                ClusterRow(id=f"c{number}", tenant="t", name="x" * 4000, cluster_hash="h", num_devices=1, document={})
            )
    before = (tmp_path / "test.db").stat().st_size
    with database.read() as reader:
        assert reader.scalar(select(func.count()).select_from(ClusterRow)) == 1200
        database.checkpoint()
    assert (tmp_path / "test.db").stat().st_size > before + 1200 * 4000
    database.close()


def test_a_writing_session_that_fails_leaves_nothing(database: Database) -> None:
    database.upgrade()
    with pytest.raises(ZeroDivisionError), database.write() as session:
        session.execute(text("INSERT INTO alembic_version VALUES ('x')"))
        raise ZeroDivisionError
    assert database.is_current()


@pytest.mark.parametrize("url", ["not a url", "abacus://x", "sqlite+abacus:///x.db", "postgresql://h:port/x"])
def test_a_bad_database_url_is_an_input_error(url: str) -> None:
    with pytest.raises(InputError, match="database_url"):
        Database(url)
