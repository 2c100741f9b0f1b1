"""The database: an engine, sessions for reading and for writing, and migrations to the newest schema.

SQLite runs in WAL mode with foreign keys on. What is committed is on the disk: it outlives a loss of power. A service brings
the log into the file (``checkpoint``); a commit does so only if that was not done for 64 MiB. A writing session takes the write
lock when it begins (``BEGIN IMMEDIATE``), so that "look, then insert" is atomic and no transaction fails half-way because
another one wrote first.
PostgreSQL runs at READ COMMITTED; what must be one step there is an insert with a key, or locks its row. Sessions for reading
have no transaction there: each statement would see the newest rows in one, too, and each begin and end is a way to the server
and back.
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
from autosbp.jsonio import canonical
from service import tenancy
from service.awaited import Awaited, Result, is_here

_log = logging.getLogger(__name__)
_STATEMENT_TIMEOUT_MS = 30_000
_POOL_SIZE = 48  # a connection for each thread that requests run in, and some for the runner
_COUNTED = {"preserve_rowcount": True}
_FRESH_S = 1.0  # after which a connection to a server is tried before it is used again
_CHECKPOINT_PAGES = 16_384
Change = Insert | Update | Delete
_MIGRATING = 0x61757462  # any number that all our processes use for PostgreSQL's advisory lock


class Sessions(Protocol):
    """Where sessions come from: a tenant's view of the database, or the whole of it."""

    def read(self) -> Session:
        """A session for reading; use it as a context manager."""

    def write(self) -> AbstractContextManager[Session]:
        """A context manager that yields a session and commits at its end, or rolls back on an exception."""


class Database:
    """An engine and its two session factories. Thread-safe; one per process.

    Args:
        url: ``sqlite:///FILE`` or ``postgresql://USER@HOST/NAME``.
        lock_timeout_s: how long a statement waits for a lock before it fails.

    ``file`` is SQLite's, None for other databases and one in memory; ``url`` names no driver; ``tenant`` is whose sessions
    these are (``service.tenancy``), None for the system's own.
    """

    tenant: str | None = None

    def __init__(self, url: str, lock_timeout_s: float = 10.0) -> None:
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError) as error:
            raise InputError("database_url", url, f"a SQLAlchemy URL is expected ({error})") from None
        if parsed.drivername in ("postgresql", "postgres"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        self.file = file_of(parsed)
        if self.file is not None:
            try:
                self.file.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                limit = f"a file in a folder that is there, or can be made, is expected ({error.strerror})"
                raise InputError("database_url", str(self.file), limit) from None
        options = {"json_serializer": _dump, **_pooling(parsed, lock_timeout_s)}
        try:
            self.engine = create_engine(parsed, **options)
        except (NoSuchModuleError, ModuleNotFoundError) as error:
            raise InputError("database_url", parsed.drivername, f"an installed driver is expected ({error})") from None
        self.url = parsed.set(drivername=parsed.get_backend_name()).render_as_string(hide_password=False)
        self._lock_timeout_s, self._turn = lock_timeout_s, threading.Lock()
        if self.is_embedded:
            _configure_sqlite(self.engine, lock_timeout_s)
            reading: Engine = self.engine
            self._direct: Engine = self.engine.execution_options(sqlite_begin=None)
            self._awaited: Awaited | None = None
        else:
            single = {**options, "isolation_level": "AUTOCOMMIT", "skip_autocommit_rollback": True}
            reading = self._direct = create_engine(parsed, **single)
            self._awaited = Awaited(parsed, single)
            for engine in (self.engine, reading, self._awaited.reading, self._awaited.writing):
                _try_before_use(engine)
        self.reading = sessionmaker(reading, expire_on_commit=False)
        writing = self.engine.execution_options(sqlite_begin="IMMEDIATE")
        self._writing_engine, self.writing = writing, sessionmaker(writing, expire_on_commit=False)
        for factory in (self.reading, self.writing):
            tenancy.guard(factory)

    @property
    def shown(self) -> str:
        """Its URL for people, without a password."""
        return make_url(self.url).render_as_string()

    @property
    def is_embedded(self) -> bool:
        """Whether the database is in this process, so that reading a few rows takes a millisecond and no waiting."""
        return self.engine.dialect.name == "sqlite"

    def of(self, tenant: str | None) -> Self:
        """The same database with sessions of one tenant."""
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__, tenant=tenant)
        return view

    def read(self) -> Session:
        """A session for reading; use it as a context manager."""
        bound = {} if self._awaited is None or not is_here() else {"bind": self._awaited.reading}
        return self.reading(info=tenancy.info(self.tenant), **bound)

    async def ask(self, work: Callable[..., Result], /, *arguments: Any, **named: Any) -> Result:
        """What ``work`` returns, which reads a few rows, on the event loop: a database in this process answers in less time
        than a thread takes to get Python's lock from others, and has its readers wait for nobody; another one is awaited."""
        if self._awaited is None:
            return work(*arguments, **named)
        return await self._awaited.run(work, *arguments, **named)

    async def tell(self, work: Callable[..., Result], /, *arguments: Any, **named: Any) -> Result:
        """What ``work`` returns, which writes by ``execute`` alone: awaited on the event loop; a database in this process,
        whose writers wait for each other, is written by a thread."""
        if self._awaited is None:
            return await run_in_threadpool(work, *arguments, **named)
        return await self._awaited.run(work, *arguments, **named)

    def fetch(self, statement: Select[Any], **values: object) -> Sequence[Row[Any]]:
        """The rows of one statement without the ORM, which ``tenancy.narrowed`` has made; of a tenant's view alone."""
        engine = self._direct if self._awaited is None or not is_here() else self._awaited.reading
        with engine.connect() as connection:
            return connection.execute(statement, {**values, **self._whose()}).all()

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A context manager that yields a session and commits at its end, or rolls back on an exception."""
        with self._in_turn(), self.writing(info=tenancy.info(self.tenant)) as session, session.begin():
            yield session

    def execute(self, *statements: tuple[Change, dict[str, object]]) -> int:
        """Run statements without the ORM, with their values, all or none; how many rows the last one has changed. All name
        their tenant by ``tenancy.PARAMETER``; of a tenant's view alone. A server is sent them as one statement, which needs
        no transaction around it: where there are several, no two values have one name, and none has a column's."""
        whose = self._whose()
        if self._awaited is not None:
            values = {name: value for _, given in statements for name, value in given.items()}
            one = _joined(*(each for each, _ in statements))
            with (self._awaited.writing if is_here() else self._direct).connect() as connection:
                return connection.execute(one, {**values, **whose}, execution_options=_COUNTED).rowcount
        with self._in_turn(), self._writing_engine.begin() as connection:
            for each, given in statements:
                done = connection.execute(each, {**given, **whose}, execution_options=_COUNTED)
            return done.rowcount

    def _whose(self) -> dict[str, object]:
        if self.tenant is None:
            raise RuntimeError("a statement without the ORM is of one tenant, and this is everybody's database")
        return {tenancy.PARAMETER: self.tenant}

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Writers of this process wait here for each other, in which no time is lost: SQLite's own way to wait is to sleep
        and look again, for longer each time. Who has waited for too long goes on and is refused by SQLite."""
        mine = self.is_embedded and self._turn.acquire(timeout=self._lock_timeout_s)
        try:
            yield
        finally:
            if mine:
                self._turn.release()

    @contextmanager
    def alone(self, number: int) -> Iterator[bool]:
        """Whether no other process is in a block of the same ``number`` until the end of this one. The lock is PostgreSQL's,
        so that it ends with the process, and a session's: a transaction would be one for whose end others wait, such as what
        makes an index of a table that is in use, in the block or elsewhere. On SQLite there is one process."""
        if self.is_embedded:
            yield True
            return
        with self._direct.connect() as connection:
            mine = _lock(connection, number)
            try:
                yield mine
            except BaseException:
                with suppress(SQLAlchemyError):  # what the block raised says more
                    _unlock(connection, number, mine)
                raise
            _unlock(connection, number, mine)

    def upgrade(self, revision: str = "head") -> None:
        """Run the migrations up to the newest revision; processes that start together do so one after the other."""
        self._migrate(lambda config: command.upgrade(config, revision))

    def downgrade(self, revision: str) -> None:
        """Undo the migrations after ``revision``, or all of them after ``base``."""
        self._migrate(lambda config: command.downgrade(config, revision))

    def _migrate(self, run: Callable[[Config], None]) -> None:
        with self.engine.connect() as connection, _unchecked(connection), connection.begin():
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATING})
            self._check_known(connection)
            run(_alembic(connection))
            _check_references(connection)

    def _check_known(self, connection: Connection) -> None:
        revision = MigrationContext.configure(connection).get_current_revision()
        known = [each.revision for each in ScriptDirectory.from_config(_alembic(None)).walk_revisions()]
        if revision not in (None, *known):
            limit = f"its schema is of a newer release than this one, which knows {known[-1]} to {known[0]}"
            raise InputError("database_url", f"{self.shown} with schema {revision}", limit)

    def checkpoint(self) -> None:
        """Bring what was committed from SQLite's log into its file, beside those who read and write. Done now and then, it
        keeps commits from having to: that waits for the disk, and is by far the slowest thing that a request could do."""
        if self.is_embedded:
            with self._direct.connect() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")

    def is_current(self) -> bool:
        """Whether the database answers and its schema is the newest."""
        return self.revision() == self.newest

    def revision(self) -> str | None:
        """The schema that the database has; None before it has one."""
        with self.engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()

    def check_known(self) -> None:
        """``InputError`` for a database of a newer release, which this one cannot bring anywhere."""
        with self.engine.connect() as connection:
            self._check_known(connection)

    @cached_property
    def newest(self) -> str | None:
        """The schema that this release works with."""
        return ScriptDirectory.from_config(_alembic(None)).get_current_head()

    async def leave(self) -> None:
        """Close the connections of the event loop, on it."""
        if self._awaited is not None:
            await self._awaited.close()

    def close(self) -> None:
        """Close every pooled connection but those of the event loop."""
        self.engine.dispose()
        self._direct.dispose()


def _lock(connection: Connection, number: int) -> bool:
    """Whether the session has a lock now that no other has."""
    try:
        return bool(connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": number}))
    except BaseException:
        connection.invalidate()  # it may have it, and must not go back to the pool
        raise


def _unlock(connection: Connection, number: int, mine: bool) -> None:
    """Give a session's lock back, or end the session: it must not go back to the pool with the lock."""
    try:
        if mine and not connection.scalar(text("SELECT pg_advisory_unlock(:key)"), {"key": number}):
            _log.warning("lock %d is another session's: a pooler has to keep one for each connection", number)
            connection.invalidate()
    except BaseException:
        connection.invalidate()
        raise


def plainly(error: SQLAlchemyError) -> str:
    """What the database said, in a line."""
    said = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return " ".join(str(said).split())


def _dump(document: object) -> str:
    return canonical(document).decode()


@lru_cache(maxsize=64)  # of the few that there are
def _joined(*statements: Change) -> Change:
    """One statement that does them all."""
    *earlier, last = statements
    return last.add_cte(*(each.cte(f"step_{number}") for number, each in enumerate(earlier))) if earlier else last


def file_of(url: URL) -> Path | None:
    """SQLite's file; None for another database, and for one in memory."""
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
def _unchecked(connection: Connection) -> Iterator[None]:
    """SQLite rebuilds a table to change it, while others refer to it; so references are checked at the end instead."""
    if connection.dialect.name != "sqlite":
        yield
        return
    raw: Any = connection.connection.driver_connection  # a pragma does nothing inside a transaction
    raw.execute("PRAGMA foreign_keys=OFF")
    try:
        yield
    finally:
        raw.execute("PRAGMA foreign_keys=ON")


def _check_references(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
        if broken:
            raise ServiceError(f"the database has rows that refer to none: {broken[:3]}")


def _alembic(connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def _try_before_use(engine: Engine) -> None:
    """Have a connection that was not used for a moment tried before it is: the server may have been started anew. The
    engine's own way would try it every time, which takes as long as reading a row."""

    @event.listens_for(engine, "checkin")
    def checkin(_connection: Any, record: Any) -> None:
        record.info["used_s"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def checkout(connection: Any, record: Any, _proxy: object) -> None:
        used_s = record.info.get("used_s")
        if used_s is None or time.monotonic() - used_s < _FRESH_S:
            return
        try:
            engine.dialect.do_ping(connection)
        except (engine.dialect.loaded_dbapi.Error, DBAPIError) as error:
            raise InvalidatePoolError(f"the connection is gone: {error}") from None


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
        if mode is not None:  # a statement alone is a transaction
            connection.exec_driver_sql(f"BEGIN {mode}".rstrip())
