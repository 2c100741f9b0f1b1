"""Where files are kept for whoever asks later: a folder, or a path of an object store.

    Objects("/var/lib/autosbp/artifacts")     Objects("s3://bucket/autosbp")

An object store is any that ``fsspec`` knows and whose package is installed; how to reach it, and as whom, is in that
package's own variables (``AWS_*`` for S3). A file is there whole or not at all. Thread-safe. ``FileNotFoundError`` says that
there is no such file, any other ``OSError`` that the store did not answer or refused.
"""

from __future__ import annotations

import errno
import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self, cast

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from autosbp.errors import InputError
from service.places import identity

CHUNK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Kept:
    """What a file was when it was kept."""

    num_bytes: int
    sha256: str


class Objects:
    """One place; ``InputError`` for a URL that names none. Names of files are ``FOLDER/NAME``."""

    def __init__(self, url: str) -> None:
        try:
            self._files, self._root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            limit = "a folder, or a path such as s3://BUCKET/PATH of an object store whose package is installed, is expected"
            raise InputError("artifacts", url, f"{limit} ({error})") from None
        self.folder = Path(self._root) if isinstance(self._files, LocalFileSystem) else None
        self._settled: tuple[int, ...] | None = None

    def settle(self) -> Self:
        """Make the folder, if it is one, and use from now on this one alone: what is in its place while its disk is away would
        be hidden when that is back. ``InputError`` where it cannot be made."""
        if self.folder is not None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._settled = identity(self.folder)
            except OSError as error:
                limit = f"a folder that is there, or can be made, is expected ({error.strerror})"
                raise InputError("artifacts", str(self.folder), limit) from None
        return self

    def put(self, name: str, source: Path) -> Kept:
        """Keep what a file of this machine holds now, in the place of what had the name."""
        with _as_os_errors(), source.open("rb") as file:
            if self.folder is not None:
                self._check()
                kept = _put_beside(file, self.folder / name)
                self._check()  # it may have gone meanwhile
                return kept
            with self._files.open(self._at(name), "wb") as target:
                return _copy(file, target)

    def open(self, name: str) -> IO[bytes]:
        """A file for reading, which the caller closes."""
        with _as_os_errors():
            self._check()
            return cast("IO[bytes]", self._files.open(self._at(name), "rb", block_size=CHUNK_BYTES))

    def remove(self, name: str) -> None:
        """Have no such file; nothing happens where there is none."""
        self._check()
        with _as_os_errors(), suppress(FileNotFoundError):
            self._files.rm_file(self._at(name))
            if self.folder is not None:
                with suppress(OSError):  # others are left in it
                    (self.folder / name).parent.rmdir()

    def _check(self) -> None:
        """``OSError`` where the folder is gone, or another one."""
        if self.folder is not None and self._settled is not None:
            try:
                same = identity(self.folder) == self._settled
            except OSError:
                same = False
            if not same:
                raise OSError(errno.ENOTCONN, "the folder of artifacts is gone, or another one than before")

    def _at(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"


def _put_beside(file: IO[bytes], target: Path) -> Kept:
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with draft.open("wb") as part:
            kept = _copy(file, part)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return kept


def _copy(source: IO[bytes], target: IO[bytes]) -> Kept:
    num_bytes, digest = 0, hashlib.sha256()
    while chunk := source.read(CHUNK_BYTES):
        num_bytes += len(chunk)
        digest.update(chunk)
        target.write(chunk)
    return Kept(num_bytes, digest.hexdigest())


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Packages of object stores have errors of their own."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
