"""Safe reading of files in a folder that a confined process writes.

The process may put links and pipes there instead of files: a link would redirect a read or a write, a pipe would block
it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = 2**28


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; raise ``OSError`` if it is not a regular file, or is a link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "expected a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Content of a regular file; raise ``OSError`` if it is larger than ``most_bytes``."""
    with open_regular(path) as file:
        found = file.read(most_bytes + 1)
    if len(found) > most_bytes:
        raise OSError(errno.EFBIG, f"expected at most {most_bytes} bytes", str(path))
    return found


def read_end(path: Path, num_bytes: int) -> bytes:
    """The last ``num_bytes`` of a regular file."""
    with open_regular(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - num_bytes))
        return file.read(num_bytes)


def irregular_names(folder: Path) -> set[str]:
    """Names of the direct entries of a folder that are neither files nor folders."""
    entries = os.scandir(folder)
    return {
        each.name for each in entries if not (each.is_file(follow_symlinks=False) or each.is_dir(follow_symlinks=False))
    }


def remove_irregular(folder: Path, kept: frozenset[str] | set[str] = frozenset()) -> None:
    """Remove direct entries of a folder that are neither files nor folders, except names in ``kept``."""
    for name in irregular_names(folder) - kept:
        (folder / name).unlink(missing_ok=True)
