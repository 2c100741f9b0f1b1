"""One process at a time on a SQLite file, wherever it lies and whatever data folder comes with it."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from alembic import command
from sqlalchemy import text

from autosbp.errors import InputError, ServiceError
from autosbp.service.db import Database, _alembic
from autosbp.service.process_lock import ProcessLock, migrate
from tests.service.postgres import Postgres, programs
from tests.service.server import ROOT, Server

pytestmark = pytest.mark.integration

EARLIER = "0007"


def keys(data_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from autosbp.cli import main; main()", "keys"]
    there = ["--data-dir", str(data_dir)]
    return subprocess.run([*program, *arguments, *there], capture_output=True, text=True, cwd=ROOT, check=False)


def revision(database: Database) -> str:
    with database.engine.connect() as connection:
        return str(connection.scalar(text("SELECT version_num FROM alembic_version")))


def earlier(file: Path) -> Database:
    database = Database(f"sqlite:///{file}")
    with database.engine.begin() as connection:
        command.upgrade(_alembic(connection), EARLIER)
    return database


def test_services_that_start_at_once_on_one_new_file_are_one_and_the_others_are_refused(tmp_path: Path) -> None:
    """By other names of the file, too, and with a data folder each."""
    (tmp_path / "link").symlink_to(tmp_path)
    files = (tmp_path / "shared.db", tmp_path / "link" / "shared.db", tmp_path / "shared.db")
    servers = [
        Server(tmp_path / f"data-{number}", database_url=f"sqlite:///{file}") for number, file in enumerate(files)
    ]
    refused = [server for server in servers if not server.begins()]
    (first,) = [server for server in servers if server not in refused]
    try:
        for server in refused:
            assert server.end()[0] == 5
            (line,) = (line for line in server.log if not line.startswith("INFO:"))
            assert f"another service is using the database {tmp_path / 'shared.db'}" in line
        assert httpx.get(f"{first.url}/readyz").json()["status"] == "ok"
    finally:
        first.end(signal.SIGTERM)


def test_a_refused_service_and_the_command_line_leave_the_schema_of_a_running_one_as_it_is(tmp_path: Path) -> None:
    database = earlier(tmp_path / "autosbp.db")
    hold = ProcessLock(database, tmp_path)
    hold.take()
    assert Server(tmp_path).end()[0] == 5
    listed = keys(tmp_path, "list")
    assert (listed.returncode, listed.stdout) == (
        5,
        "",
    ) and "a service of another release" in listed.stderr.splitlines()[-1]
    assert revision(database) == EARLIER
    hold.release()
    assert keys(tmp_path, "list").returncode == 0
    assert revision(database) != EARLIER
    hold.take()
    assert keys(tmp_path, "list").returncode == 0, "with this release's schema it needs no migration"
    hold.release()
    database.close()


@pytest.mark.long
def test_the_command_line_makes_a_servers_database_but_leaves_one_of_an_earlier_release_as_it_is(
    tmp_path: Path,
) -> None:
    with Postgres(programs()) as postgres:
        url = postgres.database()
        there = ("--database", url)
        assert keys(tmp_path, "list", *there).returncode == 0
        database = Database(url)
        assert database.is_current()
        database.downgrade(EARLIER)
        listed = keys(tmp_path, "list", *there)
        assert (listed.returncode, listed.stdout) == (5, "")
        (line,) = listed.stderr.splitlines()
        assert f"has schema {EARLIER}" in line and f"requires {database.newest}" in line and "autosbp serve" in line
        assert revision(database) == EARLIER
        with Server(tmp_path, database_url=url) as server:
            assert httpx.get(f"{server.url}/readyz").status_code == 200
        assert keys(tmp_path, "list", *there).returncode == 0
        with database.engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        newer = keys(tmp_path, "list", *there)
        assert newer.returncode == 2 and "newer release" in newer.stderr
        database.close()


def test_a_service_of_an_earlier_release_is_seen_by_its_lock_of_the_folder(tmp_path: Path) -> None:
    with (tmp_path / "runner.lock").open("a") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        database = Database(f"sqlite:///{tmp_path / 'other.db'}")
        hold = ProcessLock(database, tmp_path)
        with pytest.raises(ServiceError, match="AUTOSBP_DATA_DIR"):
            hold.take()
    hold.take()
    hold.release()


def test_a_database_of_a_newer_release_is_refused_in_a_line(tmp_path: Path) -> None:
    database = earlier(tmp_path / "autosbp.db")
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    database.close()
    with pytest.raises(InputError, match="newer release"):
        migrate(database)
    server = Server(tmp_path)
    assert server.end()[0] == 2
    for said in (
        keys(tmp_path, "list").stderr,
        "".join(line for line in server.log if line[:5] not in ("INFO:", "WARNI")),
    ):
        assert said.count("\n") == 1 and "9999" in said and "newer release" in said
