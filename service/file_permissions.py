"""File permissions: stored models, key hashes, logs and trial results are readable by the service's user only.

The process' umask protects files that the service and its children create. Files left open by earlier releases are
closed at startup. The data folder itself is left as it is if it exists: it may belong to somebody else, and others see
at most the names in it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from autosbp.errors import InputError
from autosbp.sandbox import group_of
from autosbp.service.db import file_of
from autosbp.service.settings import Settings

_log = logging.getLogger("autosbp.service")
_PRIVATE = 0o077
_GROUP_EXECUTE = 0o010
_PR_SET_DUMPABLE = 4
_FILES = ("autosbp.db*", "jobs.db*", "runner.lock", "session.secret*")
_SQLITE_SUFFIXES = ("-wal", "-shm")
_FOLDERS = ("artifacts", "calibrations", "jobs", "launches", "owed", "trials", "workers")


def restrict_permissions(settings: Settings) -> None:
    """Create the data folder if needed and close stored files to other users; call once per service process.

    Raises ``InputError`` if the folder cannot be created.
    """
    os.umask(_PRIVATE)
    if sys.platform == "linux":  # hides environment and memory from processes of the same user, such as ranks
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    if settings.database_url is None or settings.data_dir.exists():
        _make(settings.data_dir)
    rank_group = group_of(settings.rank_user)
    closed = [path.name for path in _stored_paths(settings) if _remove_other_access(path, rank_group)]
    if closed:
        _log.warning("removed read access of other users in %s: %s", settings.data_dir, ", ".join(closed))


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        limit = f"expected a folder that exists or can be created ({error.strerror})"
        raise InputError("data_dir", str(folder), limit) from None


def _stored_paths(settings: Settings) -> Iterator[Path]:
    folder = settings.data_dir
    yield from chain.from_iterable(sorted(folder.glob(pattern)) for pattern in (*_FILES, *_FOLDERS))
    with suppress(ArgumentError, ValueError):  # reported when the database is opened
        if settings.database_url is not None and (file := file_of(make_url(settings.url))) is not None:
            yield from (path for path in (file, *(Path(f"{file}{end}") for end in _SQLITE_SUFFIXES)) if path.exists())


def _remove_other_access(path: Path, rank_group: int | None) -> bool:
    """Remove the access of other users; return whether they had any.

    A folder may stay searchable by the ranks' group: ranks of another user reach a job's folder through it.
    """
    try:
        found = path.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_gid == rank_group and found.st_mode & _PRIVATE == _GROUP_EXECUTE:
            return False
        if stat.S_ISLNK(found.st_mode) or not found.st_mode & _PRIVATE:
            return False
        path.chmod(stat.S_IMODE(found.st_mode) & ~_PRIVATE)
    except OSError as error:
        _log.warning("other users can read %s: %s", path, error.strerror)
        return False
    return True
