"""Exclusive lock of one process on a data folder with SQLite and on the SQLite file itself.

Each is locked through a file (``runner.lock`` in the folder, ``FILE.lock`` next to the database). The kernel releases
the lock when the process ends, however it ends. Locks are taken before anything is read, migrated or written. A
database server needs no such lock.
"""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import IO

from sqlalchemy.exc import OperationalError

from autosbp.errors import ServiceError
from autosbp.service.db import Database

RESTORE_MARKER = "restoring"
"""Marker file in the data folder while a backup is being restored."""
_LOCK_TIMEOUT_S = 2.0  # `autosbp keys` may hold the lock while it migrates
_POLL_S = 0.05


class ProcessLock:
    """The locks of a process that serves or works; none for a database server.

    Args:
        database: the service's database.
        data_dir: the service's data folder.
    """

    def __init__(self, database: Database, data_dir: Path) -> None:
        self._restore = data_dir / RESTORE_MARKER
        self._lock_paths: list[tuple[Path, str]] = []
        self._lock_files: list[IO[str]] = []
        if database.file is not None:  # the folder first: earlier releases lock only the folder
            self._lock_paths = [
                (data_dir / "runner.lock", f"{data_dir}; set AUTOSBP_DATA_DIR"),
                (_lock_path(database.file), f"the database {database.file}; set AUTOSBP_DATABASE_URL"),
            ]

    def take(self, *, restoring: bool = False) -> None:
        """Take both locks, waiting up to ``_LOCK_TIMEOUT_S``.

        Args:
            restoring: take them although a restore is unfinished.

        Raises:
            ServiceError: another process holds a lock, a file cannot be locked, or a restore is unfinished.
        """
        if not restoring and self._restore.exists():
            again = "run autosbp admin restore --replace again"
            raise ServiceError(f"a restore into {self._restore.parent} was interrupted or is still running: {again}")
        until_s = time.monotonic() + _LOCK_TIMEOUT_S
        for path, what in self._lock_paths:
            while (found := _try_lock(path)) is None:
                if time.monotonic() > until_s:
                    self.release()
                    raise ServiceError(f"another service is using {what}")
                time.sleep(_POLL_S)
            self._lock_files.append(found)

    def release(self) -> None:
        """Release the locks."""
        while self._lock_files:
            self._lock_files.pop().close()


def migrate(database: Database) -> None:
    """Migrate a database to the newest schema for a short-lived command that may run next to a service.

    A database that services may be using is left as it is: a SQLite file that a process holds, and every non-empty
    database of a server, because services of earlier releases do not register there. An empty database of a server is
    initialised.

    Raises:
        ServiceError: the schema of such a database is not this release's.
    """
    if not database.is_sqlite and (found := database.revision()) is not None:
        database.check_known()
        if not database.is_current():
            has = f"{database.redacted_url} has schema {found}, but this release requires {database.newest}"
            how = "stop services of earlier releases, then start this one (autosbp serve), which upgrades the schema"
            raise ServiceError(f"{has}; {how}, or use the earlier release")
        return
    until_s = time.monotonic() + _LOCK_TIMEOUT_S
    while not _try_migrate(database):
        if time.monotonic() > until_s:
            what = f"a service of another release is using {database.redacted_url}"
            raise ServiceError(f"{what}; stop that service, or use its release")
        time.sleep(_POLL_S)


def _try_migrate(database: Database) -> bool:
    held = None if database.file is None else _try_lock(_lock_path(database.file))
    if held is None and database.file is not None:
        try:
            return database.is_current()
        except OperationalError:  # the other process is creating the schema
            return False
    try:
        database.upgrade()
    finally:
        if held is not None:
            held.close()
    return True


def _lock_path(file: Path) -> Path:
    return file.with_name(f"{file.name}.lock")


def _try_lock(path: Path) -> IO[str] | None:
    """Open and lock a file; None while another process holds the lock."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        raise ServiceError(f"cannot lock {path}: {error.strerror or error}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except OSError as error:
        file.close()
        raise ServiceError(f"cannot lock {path}: {error.strerror or error}") from None
    return file
