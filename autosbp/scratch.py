"""Temporary folders that do not pile up: in use while a lock is held, which ends with its process, however that ends."""

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
"""How long a folder that nobody uses stays, since it was last changed."""
UNTOLD_S = 60.0
"""The same, of one that nobody is told of where its process is killed."""


def hold(folder: Path) -> int | None:
    """The lock on a folder, to be closed; None for one that somebody uses, or that is not this user's."""
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
    """One of its own, with its lock; others of the same prefix that nobody uses go where they are older than ``kept_s``."""
    for old in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        remove_old(old, kept_s)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    held = hold(folder)
    assert held is not None, "nobody else knows it"  # noqa: S101
    return held, folder


@contextmanager
def temporary_folder(prefix: str, kept_s: float = KEPT_S) -> Iterator[Path]:
    """Gone after the block; those of the same prefix that killed processes have left go when they are older than ``kept_s``."""
    held, folder = new_folder(prefix, kept_s)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def remove_old(folder: Path, kept_s: float = KEPT_S) -> None:
    """Remove a folder that nobody uses and in which nothing has changed for ``kept_s``."""
    if (held := hold(folder)) is not None:
        if time.time() - changed_s(folder) > kept_s:
            shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def changed_s(folder: Path) -> float:
    """The latest time of a folder and what is directly in it; 0 for one that is gone."""
    found = 0.0
    with suppress(OSError):
        for path in (folder, *folder.iterdir()):
            found = max(found, path.stat().st_mtime)
    return found


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """For a file that is read and then replaced by what became of it: others that do the same wait, and read the new one."""
    while True:
        held = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(held), path.stat()):
                yield
                return
        finally:
            os.close(held)
