"""Health of the storage: checks that folders and database file are still those of startup, and are writable.

A process keeps writing into an open file that was moved or removed; data accepted then would be lost. Artifacts may be
on a separate disk, and the database would not notice when that is full or read-only.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from autosbp.errors import InputError

_WRITE_TEST_INTERVAL_S, _WRITE_TEST_BYTES = 1.0, 4096


@dataclass(slots=True)
class StorageHealth:
    """The data folder, the database file and the artifact folder, each if it exists. Thread-safe after ``note``."""

    data_dir: Path | None = None
    database: Path | None = None
    artifacts: Path | None = None
    _identities: dict[str, tuple[Path, tuple[int, ...]]] = field(default_factory=dict)
    _last_write_test: tuple[float, OSError | None] = (float("-inf"), None)

    def record_identities(self) -> None:
        """Record the identity of the current files; create the artifact folder if needed.

        Raises ``InputError`` if the folder cannot be created.
        """
        if self.artifacts is not None:
            try:
                self.artifacts.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                limit = f"expected a folder that exists or can be created ({error.strerror})"
                raise InputError("artifacts", str(self.artifacts), limit) from None
        named = {
            "the data folder": self.data_dir,
            "the database's file": self.database,
            "the artifacts folder": self.artifacts,
        }
        self._identities = {name: (path, identity(path)) for name, path in named.items() if path is not None}

    def misplaced_storage(self) -> str | None:
        """Describe the file or folder that is gone or was replaced; None if all are in place."""
        for name, (path, before) in self._identities.items():
            try:
                if identity(path) != before:
                    return f"{name} was replaced after the service started; put it back, or restart the service"
            except OSError:
                return f"{name} is missing"
        return None

    def write_error(self) -> OSError | None:
        """The error of writing to the artifact folder, or None; tried at most once a second."""
        if self.artifacts is None:
            return None
        tried_s, found = self._last_write_test
        if time.monotonic() - tried_s >= _WRITE_TEST_INTERVAL_S:
            found = _test_write(self.artifacts)
            self._last_write_test = time.monotonic(), found
        return found


def _test_write(folder: Path) -> OSError | None:
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:  # unnamed: leaves nothing behind
            file.write(bytes(_WRITE_TEST_BYTES))
    except OSError as error:
        return error
    return None


def identity(path: Path) -> tuple[int, ...]:
    """Identify an existing file or folder; raise ``OSError`` if it does not exist.

    A folder is identified by its inode alone: a network file system may get another device number when it is mounted
    again. A database file is not on one.
    """
    found = os.stat(path)
    return (found.st_ino,) if path.is_dir() else (found.st_dev, found.st_ino)
