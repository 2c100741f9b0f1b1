"""The database: an engine, sessions for reading and for writing, and migrations to the newest schema.

SQLite runs in WAL mode with foreign keys on. Committed data is on disk and survives a power loss. The service
checkpoints the log into the file itself (``checkpoint``); a commit does so only if 64 MiB have accumulated. A writing
session takes the write lock when it begins (``BEGIN IMMEDIATE``): "look, then insert" is atomic, and no transaction
fails half-way because of another writer.

PostgreSQL runs at READ COMMITTED; an operation that must be atomic there is an insert with a key, or locks its row.
Reading sessions use autocommit: at READ COMMITTED each statement sees the newest rows anyway, and each BEGIN and COMMIT
would cost a round trip.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Delete, Engine, Insert, Row, Select, Update, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InvalidatePoolError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker
from starlette.concurrency import run_in_threadpool

from autosbp.errors import InputError, ServiceError
from autosbp.service import tenancy
from autosbp.service.async_db import AsyncDatabase, Result, in_async_run
from autosbp.utils.json_io import canonical

_log = logging.getLogger(__name__)
_STATEMENT_TIMEOUT_MS = 30_000
_POOL_SIZE = 48  # one connection per request thread, and some for the job runner
_PRESERVE_ROWCOUNT = {"preserve_rowcount": True}
_PING_AFTER_IDLE_S = 1.0  # a server connection idle for longer is pinged before it is used again
_CHECKPOINT_PAGES = 16_384
_TRUNCATE_WAL_BYTES = 4 * 2**20
Change = Insert | Update | Delete
_MIGRATION_LOCK_KEY = (
    0x61757462  # key of PostgreSQL's advisory lock for migrations; any number that all our processes share
)


class Sessions(Protocol):
    """A source of sessions: one tenant's view of the database, or all of it."""

    def read(self) -> Session:
        """Open a session for reading; use it as a context manager."""

    def write(self) -> AbstractContextManager[Session]:
        """Open a writing session that commits at the end of the context, or rolls back on an exception."""


class Database:
    """An engine and its two session factories. Thread-safe; one per process.

    Args:
        url: ``sqlite:///FILE`` or ``postgresql://USER@HOST/NAME``.
        lock_timeout_s: how long a statement waits for a lock before it fails.

    Attributes:
        file: the SQLite file; None for a server and for a database in memory.
        url: the URL without a driver, with its password.
        tenant: tenant of these sessions (``autosbp.service.tenancy``); None for the system's own.
    """

    tenant: str | None = None

    def __init__(self, url: str, lock_timeout_s: float = 10.0) -> None:
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError) as error:
            raise InputError("database_url", url, f"expected a SQLAlchemy URL ({error})") from None
        if parsed.drivername in ("postgresql", "postgres"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        self.file = file_of(parsed)
        if self.file is not None:
            try:
                self.file.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                limit = f"expected a file in a folder that exists or can be created ({error.strerror})"
                raise InputError("database_url", str(self.file), limit) from None
        options = {"json_serializer": _dump, **_pooling(parsed, lock_timeout_s)}
        try:
            self.engine = create_engine(parsed, **options)
        except (NoSuchModuleError, ModuleNotFoundError) as error:
            raise InputError("database_url", parsed.drivername, f"expected an installed driver ({error})") from None
        self.url = parsed.set(drivername=parsed.get_backend_name()).render_as_string(hide_password=False)
        self._lock_timeout_s, self._write_lock = lock_timeout_s, threading.Lock()
        if self.is_sqlite:
            _configure_sqlite(self.engine, lock_timeout_s)
            reading: Engine = self.engine
            self._autocommit_engine: Engine = self.engine.execution_options(sqlite_begin=None)
            self._async_database: AsyncDatabase | None = None
        else:
            single = {**options, "isolation_level": "AUTOCOMMIT", "skip_autocommit_rollback": True}
            reading = self._autocommit_engine = create_engine(parsed, **single)
            self._async_database = AsyncDatabase(parsed, single)
            for engine in (self.engine, reading, self._async_database.reading, self._async_database.writing):
                _ping_idle_connections(engine)
        self.reading = sessionmaker(reading, expire_on_commit=False)
        writing = self.engine.execution_options(sqlite_begin="IMMEDIATE")
        self._writing_engine, self.writing = writing, sessionmaker(writing, expire_on_commit=False)
        for factory in (self.reading, self.writing):
            tenancy.restrict_sessions(factory)

    @property
    def redacted_url(self) -> str:
        """The URL without its password, for messages."""
        return make_url(self.url).render_as_string()

    @property
    def is_sqlite(self) -> bool:
        """Whether the database runs in this process (SQLite), so that reading a few rows takes a millisecond without waits."""
        return self.engine.dialect.name == "sqlite"

    def of(self, tenant: str | None) -> Self:
        """Return a view of the same database with sessions of one tenant."""
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__, tenant=tenant)
        return view

    def read(self) -> Session:
        """Open a session for reading; use it as a context manager."""
        bound = {} if self._async_database is None or not in_async_run() else {"bind": self._async_database.reading}
        return self.reading(info=tenancy.session_info(self.tenant), **bound)

    async def run_read(self, work: Callable[..., Result], /, *arguments: Any, **named: Any) -> Result:
        """Run ``work``, which reads a few rows, on the event loop and return its result.

        SQLite is called directly: that takes less time than a thread needs to get the GIL, and readers wait for nobody.
        A database server is awaited.
        """
        if self._async_database is None:
            return work(*arguments, **named)
        return await self._async_database.run(work, *arguments, **named)

    async def tell(self, work: Callable[..., Result], /, *arguments: Any, **named: Any) -> Result:
        """Run ``work``, which writes with ``execute`` only, and return its result.

        A database server is awaited on the event loop. SQLite is written by a thread, because its writers wait for each
        other.
        """
        if self._async_database is None:
            return await run_in_threadpool(work, *arguments, **named)
        return await self._async_database.run(work, *arguments, **named)

    def fetch(self, statement: Select[Any], **values: object) -> Sequence[Row[Any]]:
        """Run one statement made by ``tenancy.narrowed`` without the ORM; only on a tenant's view."""
        engine = (
            self._autocommit_engine
            if self._async_database is None or not in_async_run()
            else self._async_database.reading
        )
        with engine.connect() as connection:
            return connection.execute(statement, {**values, **self._tenant_parameter()}).all()

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Open a writing session that commits at the end of the context, or rolls back on an exception."""
        with (
            self._locked_for_writing(),
            self.writing(info=tenancy.session_info(self.tenant)) as session,
            session.begin(),
        ):
            yield session

    def execute(self, *statements: tuple[Change, dict[str, object]]) -> int:
        """Run statements atomically without the ORM; only on a tenant's view.

        A server receives them as one statement, which needs no explicit transaction. Therefore, with several
        statements, each parameter name must be unique and differ from every column name.

        Args:
            *statements: pairs of a statement, which filters on ``tenancy.PARAMETER``, and its parameter values.

        Returns:
            Number of rows that the last statement changed.
        """
        whose = self._tenant_parameter()
        if self._async_database is not None:
            values = {name: value for _, given in statements for name, value in given.items()}
            one = _combined_statement(*(each for each, _ in statements))
            with (self._async_database.writing if in_async_run() else self._autocommit_engine).connect() as connection:
                return connection.execute(one, {**values, **whose}, execution_options=_PRESERVE_ROWCOUNT).rowcount
        with self._locked_for_writing(), self._writing_engine.begin() as connection:
            for each, given in statements:
                done = connection.execute(each, {**given, **whose}, execution_options=_PRESERVE_ROWCOUNT)
            return done.rowcount

    def _tenant_parameter(self) -> dict[str, object]:
        if self.tenant is None:
            raise RuntimeError("raw SQL bypasses tenant isolation; use the ORM")
        return {tenancy.TENANT_PARAMETER: self.tenant}

    @contextmanager
    def _locked_for_writing(self) -> Iterator[None]:
        """Queue the writers of this process on a lock.

        SQLite's own wait polls with growing sleeps, which loses time. A writer whose wait times out goes on, and SQLite
        refuses it.
        """
        mine = self.is_sqlite and self._write_lock.acquire(timeout=self._lock_timeout_s)
        try:
            yield
        finally:
            if mine:
                self._write_lock.release()

    @contextmanager
    def alone(self, number: int) -> Iterator[bool]:
        """Yield whether this process is the only one in a block with this ``number``.

        Uses a session-level advisory lock of PostgreSQL, which ends with the process. A transaction-level lock would
        keep a transaction open for the whole block, and other operations, such as CREATE INDEX CONCURRENTLY, wait for
        open transactions. SQLite has one process, so the answer is always True.
        """
        if self.is_sqlite:
            yield True
            return
        with self._autocommit_engine.connect() as connection:
            mine = _lock(connection, number)
            try:
                yield mine
            except BaseException:
                with suppress(SQLAlchemyError):  # the block's exception is more informative
                    _unlock(connection, number, mine)
                raise
            _unlock(connection, number, mine)

    def upgrade(self, revision: str = "head") -> None:
        """Run the migrations up to ``revision``; processes that start together run them one after another."""
        self._migrate(lambda config: command.upgrade(config, revision))

    def downgrade(self, revision: str) -> None:
        """Undo the migrations after ``revision``, or all of them for ``base``."""
        self._migrate(lambda config: command.downgrade(config, revision))

    def _migrate(self, run: Callable[[Config], None]) -> None:
        with self.engine.connect() as connection, _foreign_keys_off(connection), connection.begin():
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK_KEY})
            self._check_known(connection)
            run(_alembic(connection))
            _check_references(connection)

    def _check_known(self, connection: Connection) -> None:
        revision = MigrationContext.configure(connection).get_current_revision()
        known = self.revisions
        if revision not in (None, *known):
            limit = f"a newer release wrote its schema; this release supports schemas {known[-1]} to {known[0]}"
            raise InputError("database_url", f"{self.redacted_url} with schema {revision}", limit)

    def checkpoint(self) -> None:
        """Copy committed pages from SQLite's log into its file, without blocking readers or writers.

        Done regularly, it spares commits the checkpoint, which waits for the disk and is by far the slowest step a
        request could take. A log that has grown long is truncated once nobody uses it.
        """
        if self.is_sqlite:
            with self._autocommit_engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")
            if self.file is not None and _size(self.file.with_name(f"{self.file.name}-wal")) > _TRUNCATE_WAL_BYTES:
                self.truncate_log()

    def truncate_log(self) -> bool:
        """Truncate SQLite's log if nobody is reading or writing and all of it is in the file; return whether it succeeded."""
        if not self.is_sqlite:
            return True
        with self._autocommit_engine.connect() as connection:
            # do not wait for locks: a new writer would have to wait as long
            connection.exec_driver_sql("PRAGMA busy_timeout=0")
            try:
                busy, *_ = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
            finally:
                connection.exec_driver_sql(f"PRAGMA busy_timeout={round(1e3 * self._lock_timeout_s)}")
        return not busy

    def is_current(self) -> bool:
        """Whether the database answers and its schema is the newest."""
        return self.revision() == self.newest

    def revision(self) -> str | None:
        """Revision of the database's schema; None if it has no schema yet."""
        with self.engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()

    def check_known(self) -> None:
        """Raise ``InputError`` if the schema is of a newer release, which this release cannot migrate."""
        with self.engine.connect() as connection:
            self._check_known(connection)

    @cached_property
    def newest(self) -> str | None:
        """The schema revision that this release works with."""
        return ScriptDirectory.from_config(_alembic(None)).get_current_head()

    @property
    def revisions(self) -> list[str]:
        """The schema revisions that this release knows, newest first."""
        return [each.revision for each in ScriptDirectory.from_config(_alembic(None)).walk_revisions()]

    async def close_async(self) -> None:
        """Close the event loop's connections; call it on that loop."""
        if self._async_database is not None:
            await self._async_database.close()

    def close(self) -> None:
        """Close every pooled connection except those of the event loop."""
        self.engine.dispose()
        self._autocommit_engine.dispose()


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _lock(connection: Connection, number: int) -> bool:
    """Try to take a session-level advisory lock; return whether it was free."""
    try:
        return bool(connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": number}))
    except BaseException:
        connection.invalidate()  # the session may hold the lock, so it must not return to the pool
        raise


def _unlock(connection: Connection, number: int, mine: bool) -> None:
    """Release the session's lock, or close the session: it must not return to the pool with the lock."""
    try:
        if mine and not connection.scalar(text("SELECT pg_advisory_unlock(:key)"), {"key": number}):
            _log.warning(
                "another session holds lock %d; the connection pooler must pin one session per connection", number
            )
            connection.invalidate()
    except BaseException:
        connection.invalidate()
        raise


def one_line_message(error: SQLAlchemyError) -> str:
    """The database's error message, on one line."""
    said = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return " ".join(str(said).split())


def _dump(document: object) -> str:
    return canonical(document).decode()


@lru_cache(maxsize=64)  # the program uses few distinct combinations
def _combined_statement(*statements: Change) -> Change:
    """Combine statements into one, the earlier ones as CTEs."""
    *earlier, last = statements
    return last.add_cte(*(each.cte(f"step_{number}") for number, each in enumerate(earlier))) if earlier else last


def file_of(url: URL) -> Path | None:
    """Path of a SQLite file; None for another database and for one in memory."""
    name = url.database if url.get_backend_name() == "sqlite" else None
    if name is None or name in ("", ":memory:") or "mode=memory" in url.render_as_string() or "file::memory:" in name:
        return None
    return Path(urlsplit(name).path if name.startswith("file:") else name).resolve()


def _pooling(url: URL, lock_timeout_s: float) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if url.get_backend_name() == "postgresql":
        limits = f"-c statement_timeout={_STATEMENT_TIMEOUT_MS} -c lock_timeout={lock_timeout_s:.3f}s -c timezone=UTC"
        options = {"connect_args": {"options": limits, "connect_timeout": 10}}
    if url.database not in (None, "", ":memory:"):
        options |= {"pool_size": _POOL_SIZE, "max_overflow": 0, "pool_timeout": 10}
    return options


@contextmanager
def _foreign_keys_off(connection: Connection) -> Iterator[None]:
    """Turn SQLite's foreign keys off during migrations.

    SQLite rebuilds a table to change it while others refer to it; references are checked at the end instead.
    """
    if connection.dialect.name != "sqlite":
        yield
        return
    raw: Any = connection.connection.driver_connection  # a pragma has no effect inside a transaction
    raw.execute("PRAGMA foreign_keys=OFF")
    try:
        yield
    finally:
        raw.execute("PRAGMA foreign_keys=ON")


def _check_references(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
        if broken:
            raise ServiceError(f"the database has dangling references: {broken[:3]}")


def _alembic(connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def _ping_idle_connections(engine: Engine) -> None:
    """Ping a connection that has been idle for ``_PING_AFTER_IDLE_S`` before it is used: the server may have restarted.

    SQLAlchemy's ``pool_pre_ping`` would ping on every use, which takes as long as reading a row.
    """

    @event.listens_for(engine, "checkin")
    def checkin(_connection: Any, record: Any) -> None:
        record.info["used_s"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def checkout(connection: Any, record: Any, _proxy: object) -> None:
        used_s = record.info.get("used_s")
        if used_s is None or time.monotonic() - used_s < _PING_AFTER_IDLE_S:
            return
        try:
            engine.dialect.do_ping(connection)
        except (engine.dialect.loaded_dbapi.Error, DBAPIError) as error:
            raise InvalidatePoolError(f"connection lost: {error}") from None


def _configure_sqlite(engine: Engine, lock_timeout_s: float) -> None:
    @event.listens_for(engine, "connect")
    def connect(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the driver must not open transactions by itself
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={round(1e3 * lock_timeout_s)}")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        mode = connection.get_execution_options().get("sqlite_begin", "")
        if mode is not None:  # None: a single statement is its own transaction
            connection.exec_driver_sql(f"BEGIN {mode}".rstrip())
