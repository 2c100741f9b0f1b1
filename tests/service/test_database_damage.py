"""A database that is damaged: refused at the start, and said by /readyz while the service runs."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest
from sqlalchemy import text
from starlette.testclient import TestClient

from autosbp.errors import ServiceError
from autosbp.service import database_damage
from autosbp.service.db import Database
from autosbp.service.jobs._worker_registry import WorkerRegistry
from autosbp.service.settings import Settings
from tests.service import documents
from tests.service.conftest import running, state_of
from tests.service.postgres import Postgres
from tests.service.server import Server

pytestmark = pytest.mark.integration

GARBAGE = b"\xa5" * 4096
REMEDY = "autosbp admin restore"


def made(path: Path) -> None:
    """A database with some pages, all of them in the file."""
    database = Database(f"sqlite:///{path}")
    database.upgrade()
    database.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert path.stat().st_size > 20 * len(GARBAGE)


def spoil(path: Path, first_page: int) -> None:
    """Overwrite every page from this one on."""
    count = path.stat().st_size // len(GARBAGE)
    with path.open("r+b") as file:
        file.seek((first_page - 1) * len(GARBAGE))
        file.write(GARBAGE * (count - first_page + 1))


@pytest.mark.some(2)
@pytest.mark.parametrize("first_page", [1, 2, 15])
def test_a_damaged_file_is_refused_at_the_start_with_what_to_do(tmp_path: Path, first_page: int) -> None:
    made(tmp_path / "autosbp.db")
    spoil(tmp_path / "autosbp.db", first_page)
    server = Server(tmp_path)
    assert not server.begins()
    status, _ = server.end()
    assert status == 5
    last = "".join(server.log).strip().splitlines()[-1]
    assert "the database is corrupt (" in last and REMEDY in last


def test_a_database_that_lacks_a_table_is_refused_at_the_start(postgres: Postgres, tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path / 'test.db'}", postgres.database()):
        database = Database(url)
        database_damage.upgrade(database)
        assert database_damage.find_damage(database) is None
        with database.write() as session:
            session.execute(text("DROP TABLE workers"))
        assert REMEDY in (database_damage.find_damage(database) or "")
        with pytest.raises(ServiceError, match=f"lacks workers.*{REMEDY}"):
            database_damage.upgrade(database)
        database.close()


def ready(client: TestClient) -> tuple[int, str]:
    answer = client.get("/readyz")
    return answer.status_code, answer.json().get("detail", "")


@pytest.mark.parametrize("first_page", [1, 2])
def test_a_file_that_is_damaged_while_the_service_runs_is_not_ready(settings: Settings, first_page: int) -> None:
    with running(settings) as client:
        client.post("/v1/models", json=documents.graph())
        assert ready(client)[0] == 200
        state_of(client).database.checkpoint()
        spoil(settings.data_dir / "autosbp.db", first_page)
        documents.wait_until(lambda: ready(client)[0] == 503)
        assert REMEDY in ready(client)[1]
        answers = [client.get("/v1/models"), client.post("/v1/models", json=documents.graph())]
        assert {answer.status_code for answer in answers} <= {200, 503}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_service_whose_threads_are_dead_is_not_ready(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(settings) as client:
        assert ready(client)[0] == 200
        monkeypatch.setattr(WorkerRegistry, "beat", sys.exit)
        documents.wait_until(lambda: ready(client) == (503, "thread jobs-beat has died; restart the service"))
        state_of(client).runner.stop()
        assert ready(client) == (503, "no job is running")
