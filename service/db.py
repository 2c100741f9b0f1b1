"""The database: an engine, sessions for reading and for writing, and migrations to the newest schema.

SQLite runs in WAL mode with foreign keys on. A writing session takes the write lock when it begins (``BEGIN
IMMEDIATE``), so that "look, then insert" is atomic and no transaction fails half-way because another one wrote first.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.orm import Session, sessionmaker

from autosbp.errors import InputError
from autosbp.jsonio import canonical

_BUSY_TIMEOUT_MS = 30_000


class Database:
    """An engine and its two session factories. Thread-safe; one per process."""

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError) as error:
            raise InputError("database_url", url, f"a SQLAlchemy URL is expected ({error})") from None
        if parsed.get_backend_name() == "sqlite" and parsed.database:
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        try:
            self.engine = create_engine(parsed, json_serializer=_dump, pool_pre_ping=True)
        except (NoSuchModuleError, ModuleNotFoundError) as error:
            raise InputError("database_url", parsed.drivername, f"an installed driver is expected ({error})") from None
        if self.engine.dialect.name == "sqlite":
            _configure_sqlite(self.engine)
        self.reading = sessionmaker(self.engine, expire_on_commit=False)
        writing = self.engine.execution_options(sqlite_begin="IMMEDIATE")
        self.writing = sessionmaker(writing, expire_on_commit=False)

    def read(self) -> Session:
        """A session for reading; use it as a context manager."""
        return self.reading()

    def write(self) -> AbstractContextManager[Session]:
        """A context manager that yields a session and commits at its end, or rolls back on an exception."""
        return self.writing.begin()

    def upgrade(self) -> None:
        """Run the migrations up to the newest revision."""
        with self.engine.begin() as connection:
            command.upgrade(_alembic(connection), "head")

    def is_current(self) -> bool:
        """Whether the database answers and its schema is the newest."""
        with self.engine.connect() as connection:
            head = ScriptDirectory.from_config(_alembic(connection)).get_current_head()
            return MigrationContext.configure(connection).get_current_revision() == head

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


def _dump(document: object) -> str:
    return canonical(document).decode()


def _alembic(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def _configure_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def connect(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the driver must not open transactions by itself
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        mode = connection.get_execution_options().get("sqlite_begin", "")
        connection.exec_driver_sql(f"BEGIN {mode}".rstrip())
