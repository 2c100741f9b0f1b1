"""What the service stores is its user's alone: models, keys' hashes, logs and results of trials.

What it makes from now on, and what its children make, is closed to other users by the process' umask. What earlier releases
left open is closed at the start, but for the data folder itself: one that was there may be anybody's, and of what is in it
others see the names at most.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from autosbp.errors import InputError
from service.db import file_of
from service.settings import Settings

_log = logging.getLogger("service")
_PRIVATE = 0o077
_FILES = ("autosbp.db*", "jobs.db*", "runner.lock", "session.secret*")
_BESIDE = ("-wal", "-shm")
_FOLDERS = ("artifacts", "calibrations", "jobs", "launches", "owed", "trials", "workers")


def keep_private(settings: Settings) -> None:
    """Make the data folder, if there is none, and close to others what the service stores; to be called once, by a process
    that is the service. ``InputError`` where the folder cannot be made."""
    os.umask(_PRIVATE)
    if settings.database_url is None or settings.data_dir.exists():
        _make(settings.data_dir)
    closed = [path.name for path in _stored(settings) if _close(path)]
    if closed:
        _log.warning("other users can no longer read what they could in %s: %s", settings.data_dir, ", ".join(closed))


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        limit = f"a folder that is there, or can be made, is expected ({error.strerror})"
        raise InputError("data_dir", str(folder), limit) from None


def _stored(settings: Settings) -> Iterator[Path]:
    folder = settings.data_dir
    yield from chain.from_iterable(sorted(folder.glob(pattern)) for pattern in (*_FILES, *_FOLDERS))
    with suppress(ArgumentError, ValueError):  # said by who opens it
        if settings.database_url is not None and (file := file_of(make_url(settings.url))) is not None:
            yield from (path for path in (file, *(Path(f"{file}{end}") for end in _BESIDE)) if path.exists())


def _close(path: Path) -> bool:
    """Whether it was open to others, and is no longer."""
    try:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode) or not found.st_mode & _PRIVATE:
            return False
        path.chmod(stat.S_IMODE(found.st_mode) & ~_PRIVATE)
    except OSError as error:
        _log.warning("other users may read %s: %s", path, error.strerror)
        return False
    return True
