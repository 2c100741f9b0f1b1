"""Database dumps in a backup: SQLite by VACUUM INTO, PostgreSQL by pg_dump and pg_restore.

A dump is a consistent snapshot, taken while others read and write; all fields of ``SnapshotContents`` describe that snapshot.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from sqlalchemy import Connection, Table, column, create_engine, delete, func, inspect, select, text
from sqlalchemy import table as sql_table
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import NullPool

from autosbp.errors import InputError, ServiceError, UnsupportedError
from autosbp.service.db import Database
from autosbp.service.models import ArtifactRow, Base, JobRow, TrialRow, table_of

_QUEUE_SCHEMA = "autosbp_jobs"  # schema of earlier releases
_COPY = re.compile(rb"^COPY (?:\S+\.)?\"?(\w+)\"? \(.*\) FROM stdin;$")
_VERSION = "alembic_version"
_tables: Sequence[Table] = Base.metadata.sorted_tables


@dataclass(frozen=True, slots=True)
class SnapshotContents:
    """Contents of a database at the time of its dump: artifacts as (id, job, name, SHA-256), ids of trials and jobs."""

    revision: str
    rows: Mapping[str, int]
    artifacts: Sequence[tuple[str, str, str, str]]
    trials: frozenset[str]
    jobs: frozenset[str]


class Store(Protocol):
    """A kind of database. ``file`` is the dump's name in a backup."""

    @property
    def file(self) -> str:
        """Name of the dump in a backup."""

    def dump(self, target: Path) -> SnapshotContents:
        """Dump the database to a new file."""

    def check(self, dump: Path, rows: Mapping[str, int]) -> None:
        """Raise ``ServiceError`` unless a dump is complete and has exactly these row counts."""

    def require_unused(self) -> None:
        """Raise ``ServiceError`` while somebody uses the database."""

    def is_empty(self) -> bool:
        """Whether the database stores no rows."""

    def load(self, dump: Path, left_out: Sequence[str], aside: Path) -> None:
        """Replace the database with a dump; on failure the old database is unchanged.

        Args:
            dump: the dump; it may be changed.
            left_out: ids of artifacts to delete.
            aside: folder to which old database files are moved, if the database is files.
        """


def store_of(database: Database) -> Store:
    """The store of a database; raises ``InputError`` for a database in memory."""
    if not database.is_sqlite:
        return _Postgres(database)
    if database.file is None:
        raise InputError("database", database.redacted_url, "expected a SQLite file or a PostgreSQL database")
    return _Sqlite(database.file)


def read_contents(connection: Connection) -> SnapshotContents:
    """Read the contents that the connection sees."""
    artifact = table_of(ArtifactRow).c
    there = set(inspect(connection).get_table_names())
    kept = connection.execute(select(artifact.id, artifact.job_id, artifact.name, artifact.sha256))
    return SnapshotContents(
        connection.scalar(select(column("version_num")).select_from(sql_table(_VERSION))) or "",
        row_counts(connection, [table.name for table in _tables if table.name in there]),
        [(row[0], row[1], row[2], row[3]) for row in kept],
        frozenset(connection.scalars(select(table_of(TrialRow).c.id))),
        frozenset(connection.scalars(select(table_of(JobRow).c.id))),
    )


def row_counts(connection: Connection, names: Iterable[str]) -> Mapping[str, int]:
    """Row counts of tables."""
    return {name: connection.scalar(select(func.count()).select_from(sql_table(name))) or 0 for name in names}


def require_rows(found: Mapping[str, int], rows: Mapping[str, int]) -> None:
    """Raise ``ServiceError`` if a row count differs."""
    wrong = [f"{found.get(name)} of {count} rows of {name}" for name, count in rows.items() if found.get(name) != count]
    if wrong:
        raise ServiceError(f"the copy of the database is incomplete: it has {', '.join(wrong)}")


@dataclass(frozen=True, slots=True)
class _Sqlite:
    path: Path
    file: str = "database.sqlite"

    def dump(self, target: Path) -> SnapshotContents:
        """Dump by VACUUM INTO."""
        if not self.path.is_file():
            raise InputError("database", str(self.path), "expected the database file of a service")
        with _sqlite(self.path) as connection:
            connection.exec_driver_sql("VACUUM INTO ?", (str(target),))
        target.chmod(0o600)
        with _sqlite(target, read_only=True) as connection:
            return read_contents(connection)

    def check(self, dump: Path, rows: Mapping[str, int]) -> None:
        """Check integrity, foreign keys and row counts."""
        try:
            with _sqlite(dump, read_only=True) as connection:
                said = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
                dangling = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
                found = row_counts(connection, rows)
        except DatabaseError as error:
            raise ServiceError(f"cannot read the copy of the database: {error.orig}") from None
        if said != ["ok"] or dangling:
            raise ServiceError(f"the copy of the database is corrupt: {(*said, *dangling)[:3]}")
        require_rows(found, rows)

    def require_unused(self) -> None:
        """Do nothing: ``autosbp.service.process_lock`` keeps other processes off the file."""

    def is_empty(self) -> bool:
        """Whether the database stores no rows."""
        if not self.path.exists() or self.path.stat().st_size == 0:
            return True
        with _sqlite(self.path, read_only=True) as connection:
            return _is_empty(connection)

    def load(self, dump: Path, left_out: Sequence[str], aside: Path) -> None:
        """Move the old files aside and the dump into their place."""
        with _sqlite(dump) as connection:
            _delete_artifacts(connection, left_out)
        _sync(dump)
        for name in (self.path.name, f"{self.path.name}-wal", f"{self.path.name}-shm"):
            if (old := self.path.with_name(name)).exists():
                shutil.move(old, aside / name)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(dump, self.path)
        except BaseException:
            for name in os.listdir(aside):
                if name.startswith(self.path.name):
                    shutil.move(aside / name, self.path.with_name(name))
            raise


@dataclass(frozen=True, slots=True)
class _Postgres:
    database: Database
    file: str = "database.pgdump"

    def dump(self, target: Path) -> SnapshotContents:
        """Dump by pg_dump in an exported snapshot."""
        repeatable = self.database.engine.execution_options(isolation_level="REPEATABLE READ")
        with repeatable.connect() as connection, connection.begin():
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            if not inspect(connection).has_table(_VERSION):
                raise InputError("database", self.database.redacted_url, "expected the database of a service")
            snapshot = connection.scalar(text("SELECT pg_export_snapshot()"))
            found = read_contents(connection)
            self._run(
                *("pg_dump", "--format=custom", "--no-owner", "--no-privileges", f"--exclude-schema={_QUEUE_SCHEMA}"),
                *(f"--snapshot={snapshot}", f"--file={target}", f"--dbname={self._url}"),
            )
        target.chmod(0o600)
        return found

    def check(self, dump: Path, rows: Mapping[str, int]) -> None:
        """Read every table's rows out of the dump and count them."""
        program = [_program("pg_restore"), "--data-only", "--file=-", str(dump)]
        seen, table = dict.fromkeys(rows, 0), None
        with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stderr is not None
            for line in process.stdout:
                if table is None:
                    begun = _COPY.match(line.rstrip(b"\n"))
                    table = begun[1].decode() if begun else None
                elif line == b"\\.\n":
                    table = None
                elif table in seen:
                    seen[table] += 1
            said = process.stderr.read().decode(errors="replace")
        if process.returncode:
            raise ServiceError(f"cannot read the database dump: {said.strip()[-500:]}")
        require_rows(seen, rows)

    def require_unused(self) -> None:
        """Raise ``ServiceError`` if other client connections are open."""
        others = text(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'"
        )
        self.database.close()
        with self.database.engine.connect() as connection:
            if count := connection.scalar(others):
                raise ServiceError(
                    f"{self.database.redacted_url} has {count} other connections; stop the services that use it"
                )

    def is_empty(self) -> bool:
        """Whether the database stores no rows."""
        with self.database.engine.connect() as connection:
            return _is_empty(connection)

    def load(self, dump: Path, left_out: Sequence[str], aside: Path) -> None:  # noqa: ARG002 - nothing of it is files
        """Restore in one transaction."""
        self.database.close()
        script = dump.with_suffix(".sql")
        self._run(
            *("pg_restore", "--clean", "--if-exists", "--no-owner", "--no-privileges", f"--file={script}", str(dump)),
        )
        with script.open("a") as more:
            more.write("\n")
            for each in left_out:
                more.write(f"DELETE FROM public.artifacts WHERE id = '{_check_id(each)}';\n")  # noqa: S608 - an id
        options = ("--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1")
        self._run("psql", *options, f"--file={script}", f"--dbname={self._url}")
        self.database.close()

    @property
    def _url(self) -> str:
        return make_url(self.database.url).set(password=None).render_as_string(hide_password=False)

    def _run(self, program: str, *arguments: str) -> None:
        password = make_url(self.database.url).password
        env = {**os.environ, **({"PGPASSWORD": str(password)} if password else {})}
        done = subprocess.run([_program(program), *arguments], capture_output=True, text=True, env=env)
        if done.returncode:
            raise ServiceError(f"{program} failed: {done.stderr.strip()[-500:]}")


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise UnsupportedError(f"{name} is not on the PATH; install the PostgreSQL client programs")
    return found


@contextmanager
def _sqlite(path: Path, *, read_only: bool = False) -> Iterator[Connection]:
    """Connect to an existing SQLite file in autocommit mode."""
    place = f"file:{quote(str(path))}?mode={'ro' if read_only else 'rw'}"
    engine = create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(place, uri=True), poolclass=NullPool, isolation_level="AUTOCOMMIT"
    )
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _is_empty(connection: Connection) -> bool:
    there = set(inspect(connection).get_table_names())
    return not any(connection.execute(select(table.c.id).limit(1)).first() for table in _tables if table.name in there)


def _delete_artifacts(connection: Connection, ids: Sequence[str]) -> None:
    artifacts = table_of(ArtifactRow)
    for each in ids:
        connection.execute(delete(artifacts).where(artifacts.c.id == each))


def _check_id(identifier: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", identifier):
        raise InputError("backup", identifier, "expected an artifact's id")
    return identifier


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
