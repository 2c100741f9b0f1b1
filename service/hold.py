"""One process at a time on a data folder with SQLite, and on the SQLite file itself, wherever it lies.

Each is locked by a file (``runner.lock`` in the folder, ``FILE.lock`` beside the database) that the kernel lets go of when the
process ends, however it ends. They are taken before anything is read, migrated or written. A database of a server needs none.
"""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import IO

from sqlalchemy.exc import OperationalError

from autosbp.errors import ServiceError
from service.db import Database

_PATIENCE_S = 2.0  # `autosbp keys` may hold the database for as long as it migrates
_LOOK_S = 0.05


class Hold:
    """What one process holds while it serves or works; empty for a database that is no file.

    Args:
        data_dir: the service's data folder.
    """

    def __init__(self, database: Database, data_dir: Path) -> None:
        self._wanted: list[tuple[Path, str]] = []
        self._held: list[IO[str]] = []
        if database.file is not None:  # the folder first: earlier releases lock it alone
            self._wanted = [
                (data_dir / "runner.lock", f"{data_dir}; set AUTOSBP_DATA_DIR"),
                (_beside(database.file), f"the database {database.file}; set AUTOSBP_DATABASE_URL"),
            ]

    def take(self) -> None:
        """Hold both; ``ServiceError`` if another process holds one of them, or it cannot be locked."""
        until_s = time.monotonic() + _PATIENCE_S
        for path, what in self._wanted:
            while (found := _locked(path)) is None:
                if time.monotonic() > until_s:
                    self.release()
                    raise ServiceError(f"another service is using {what}")
                time.sleep(_LOOK_S)
            self._held.append(found)

    def release(self) -> None:
        """Hold nothing any more."""
        while self._held:
            self._held.pop().close()


def migrate(database: Database) -> None:
    """Bring a database to the newest schema, for a moment's use beside a service. One that services may be using is left as it
    is, ``ServiceError`` if its schema is not this release's: a SQLite file that a process holds, and every database of a
    server, where services of earlier releases do not say that they are there. A server's that is empty is made."""
    if not database.is_embedded and (found := database.revision()) is not None:
        database.check_known()
        if not database.is_current():
            has = f"{database.shown} has schema {found}, and this release works with {database.newest}"
            how = "stop the services of earlier releases, then start this one's (autosbp serve), which upgrades it"
            raise ServiceError(f"{has}; {how}, or use their release")
        return
    until_s = time.monotonic() + _PATIENCE_S
    while not _migrated(database):
        if time.monotonic() > until_s:
            what = f"a service is using {database.shown}, whose schema is another release's"
            raise ServiceError(f"{what}; stop the service, or use its release")
        time.sleep(_LOOK_S)


def _migrated(database: Database) -> bool:
    held = None if database.file is None else _locked(_beside(database.file))
    if held is None and database.file is not None:
        try:
            return database.is_current()
        except OperationalError:  # it is being made
            return False
    try:
        database.upgrade()
    finally:
        if held is not None:
            held.close()
    return True


def _beside(file: Path) -> Path:
    return file.with_name(f"{file.name}.lock")


def _locked(path: Path) -> IO[str] | None:
    """The open and locked file; None while another process has it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        raise ServiceError(f"{path} cannot be locked: {error.strerror or error}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except OSError as error:
        file.close()
        raise ServiceError(f"{path} cannot be locked: {error.strerror or error}") from None
    return file
