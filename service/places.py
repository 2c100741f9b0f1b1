"""Whether what the service stores into is still where it was when it started.

A process keeps a file open that was moved away or removed, and goes on writing into it: what it accepted then would be gone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from autosbp.errors import InputError


@dataclass(slots=True)
class Places:
    """The data folder, a database's file, and the folder of artifacts in the data folder; those that there are. Thread-safe
    once ``note`` is done."""

    data_dir: Path | None = None
    database: Path | None = None
    artifacts: Path | None = None
    _known: dict[str, tuple[Path, tuple[int, ...]]] = field(default_factory=dict)

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
        self._known = {name: (path, _identity(path)) for name, path in named.items() if path is not None}

    def ailment(self) -> str | None:
        """What is gone, or another one than before."""
        for name, (path, before) in self._known.items():
            try:
                if _identity(path) != before:
                    return f"{name} is another one than when the service started: put it back, or restart the service"
            except OSError:
                return f"{name} is not where it was"
        return None


def _identity(path: Path) -> tuple[int, ...]:
    """A network's file system may have another number when it is mounted again; a database's file is none of one."""
    found = os.stat(path)
    return (found.st_ino,) if path.is_dir() else (found.st_dev, found.st_ino)
