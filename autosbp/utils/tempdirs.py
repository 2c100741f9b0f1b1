"""Temporary folders that are cleaned up after killed processes: a folder is in use while its process holds its lock."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

KEPT_S = 86400.0
"""Seconds after its last change that an unused folder is kept."""
UNREPORTED_KEPT_S = 60.0
"""Seconds that an unused folder is kept if nobody else gets to know its path."""


def lock_folder(folder: Path) -> int | None:
    """Lock a folder and return the descriptor, to be closed; None if it is in use, or belongs to another user."""
    with suppress(OSError):
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(held).st_uid == os.geteuid():
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return held
        except OSError:
            os.close(held)
            raise
        os.close(held)
    return None


def new_folder(prefix: str, kept_s: float = KEPT_S) -> tuple[int, Path]:
    """Create a locked temporary folder; remove unused ones with the same prefix that are older than ``kept_s``."""
    for old in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        remove_old(old, kept_s)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    held = lock_folder(folder)
    assert held is not None, "no other process knows the new folder"  # noqa: S101
    return held, folder


@contextmanager
def temporary_folder(prefix: str, kept_s: float = KEPT_S) -> Iterator[Path]:
    """A temporary folder that is removed after the block; removes leftovers with the same prefix older than ``kept_s``."""
    held, folder = new_folder(prefix, kept_s)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def remove_old(folder: Path, kept_s: float = KEPT_S) -> None:
    """Remove an unused folder in which nothing has changed for ``kept_s``."""
    if (held := lock_folder(folder)) is not None:
        if time.time() - last_change_s(folder) > kept_s:
            shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def last_change_s(folder: Path) -> float:
    """The latest modification time of a folder and its direct entries; 0 for a missing folder."""
    found = 0.0
    with suppress(OSError):
        for path in (folder, *folder.iterdir()):
            found = max(found, path.stat().st_mtime)
    return found


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Lock a file for reading and replacing it; other users of this function wait, and then read the new file."""
    while True:
        held = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(held), path.stat()):
                yield
                return
        finally:
            os.close(held)
