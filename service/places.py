"""Whether what the service stores into is still where it was when it started, and takes anything.

A process keeps a file open that was moved away or removed, and goes on writing into it: what it accepted then would be gone.
Artifacts may be on a disk of their own, of which the database would not say that it is full or read-only.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from autosbp.errors import InputError

_TRY_S, _TRY_BYTES = 1.0, 4096


@dataclass(slots=True)
class Places:
    """The data folder, a database's file, and the folder of artifacts, wherever it is; those that there are. Thread-safe once
    ``note`` is done."""

    data_dir: Path | None = None
    database: Path | None = None
    artifacts: Path | None = None
    _known: dict[str, tuple[Path, tuple[int, ...]]] = field(default_factory=dict)
    _tried: tuple[float, OSError | None] = (float("-inf"), None)

    def note(self) -> None:
        """Take what is there now for what has to be there; the folder of artifacts is made, or ``InputError``."""
        if self.artifacts is not None:
            try:
                self.artifacts.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                limit = f"a folder that is there, or can be made, is expected ({error.strerror})"
                raise InputError("artifacts", str(self.artifacts), limit) from None
        named = {
            "the data folder": self.data_dir,
            "the database's file": self.database,
            "the folder of artifacts": self.artifacts,
        }
        self._known = {name: (path, identity(path)) for name, path in named.items() if path is not None}

    def ailment(self) -> str | None:
        """What is gone, or another one than before."""
        for name, (path, before) in self._known.items():
            try:
                if identity(path) != before:
                    return f"{name} is another one than when the service started: put it back, or restart the service"
            except OSError:
                return f"{name} is not where it was"
        return None

    def unwritable(self) -> OSError | None:
        """Why nothing can be written to the folder of artifacts; it is tried once a second."""
        if self.artifacts is None:
            return None
        tried_s, found = self._tried
        if time.monotonic() - tried_s >= _TRY_S:
            found = _tried(self.artifacts)
            self._tried = time.monotonic(), found
        return found


def _tried(folder: Path) -> OSError | None:
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:  # without a name: nothing is left of it
            file.write(bytes(_TRY_BYTES))
    except OSError as error:
        return error
    return None


def identity(path: Path) -> tuple[int, ...]:
    """What tells a file or folder that is there from another one; ``OSError``. A network's file system may have another
    number when it is mounted again; a database's file is none of one."""
    found = os.stat(path)
    return (found.st_ino,) if path.is_dir() else (found.st_dev, found.st_ino)
