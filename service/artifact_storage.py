"""Artifact storage: files kept in a local folder or under a path of an object store.

    ArtifactStorage("/var/lib/autosbp/artifacts")     ArtifactStorage("s3://bucket/autosbp")

Any object store works that ``fsspec`` knows and whose package is installed. That package reads address and credentials
from its own environment variables (``AWS_*`` for S3). Writes are atomic: a file exists completely or not at all.
Thread-safe. Methods raise ``FileNotFoundError`` if the file does not exist, and another ``OSError`` if the store fails
or refuses.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self, cast

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from autosbp.errors import InputError
from autosbp.service.storage_health import identity

CHUNK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class StoredFile:
    """Size and SHA-256 of a file at the time it was stored."""

    num_bytes: int
    sha256: str


class ArtifactStorage:
    """One storage location. File names have the form ``FOLDER/NAME``.

    Raises:
        InputError: the URL names no folder and no supported object store.
    """

    def __init__(self, url: str) -> None:
        try:
            self._files, self._root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            limit = "expected a folder, or an object store path such as s3://BUCKET/PATH with its package installed"
            raise InputError("artifacts", url, f"{limit} ({error})") from None
        self.folder = Path(self._root) if isinstance(self._files, LocalFileSystem) else None
        self._folder_identity: tuple[int, ...] | None = None

    def pin_folder(self) -> Self:
        """Create the local folder if needed, and accept only this same folder from then on.

        If the folder's disk is unmounted, another folder may appear at its path. Files written there would be hidden
        once the disk is mounted again, so later calls fail instead. Raises ``InputError`` if the folder cannot be
        created.
        """
        if self.folder is not None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._folder_identity = identity(self.folder)
            except OSError as error:
                limit = f"expected a folder that exists or can be created ({error.strerror})"
                raise InputError("artifacts", str(self.folder), limit) from None
        return self

    def put(self, name: str, file: IO[bytes]) -> StoredFile:
        """Store the rest of an open file, from its current position, under ``name``; replaces an existing file.

        If the file belongs to the service's user and lies on the disk of the artifact folder, it is hard-linked and not
        copied. Nobody may write to it afterwards.
        """
        with _as_os_errors():
            if self.folder is not None:
                self._check()
                kept = _write_atomically(file, self.folder / name)
                self._check()  # the folder may have been unmounted meanwhile
                return kept
            with self._files.open(self._path_of(name), "wb") as target:
                return _copy(file, target)

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading; the caller closes it."""
        with _as_os_errors():
            self._check()
            return cast("IO[bytes]", self._files.open(self._path_of(name), "rb", block_size=CHUNK_BYTES))

    def remove(self, name: str) -> None:
        """Delete a file; do nothing if it does not exist."""
        self._check()
        with _as_os_errors(), suppress(FileNotFoundError):
            self._files.rm_file(self._path_of(name))
            if self.folder is not None:
                with suppress(OSError):  # the folder holds other files
                    (self.folder / name).parent.rmdir()

    def remove_folder(self, name: str) -> None:
        """Delete a folder and its files; do nothing if it does not exist."""
        self._check()
        with _as_os_errors(), suppress(FileNotFoundError):
            self._files.rm(self._path_of(name), recursive=True)

    def _check(self) -> None:
        """Raise ``OSError`` if the folder is gone or was replaced by another one."""
        if self.folder is not None and self._folder_identity is not None:
            try:
                same = identity(self.folder) == self._folder_identity
            except OSError:
                same = False
            if not same:
                raise OSError(errno.ENOTCONN, "the artifacts folder is missing or was replaced")

    def _path_of(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"


def _write_atomically(file: IO[bytes], target: Path) -> StoredFile:
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        if _try_hard_link(file, draft):
            kept = _copy(file, None)
        else:
            with draft.open("wb") as part:
                kept = _copy(file, part)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return kept


def _try_hard_link(file: IO[bytes], draft: Path) -> bool:
    """Hard-link an open file to ``draft``; False for another user's file, one with other links, or one partly read."""
    try:
        found = os.fstat(file.fileno())
        if found.st_uid != os.getuid() or found.st_nlink != 1 or file.tell():
            return False
        folder = os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY)
        try:  # links the open file itself, whichever file has its name now
            os.link(str(file.fileno()), draft, src_dir_fd=folder, follow_symlinks=True)
        finally:
            os.close(folder)
        return True
    except OSError:
        return False


def _copy(source: IO[bytes], target: IO[bytes] | None) -> StoredFile:
    num_bytes, digest = 0, hashlib.sha256()
    while chunk := source.read(CHUNK_BYTES):
        num_bytes += len(chunk)
        digest.update(chunk)
        if target is not None:
            target.write(chunk)
    return StoredFile(num_bytes, digest.hexdigest())


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Convert exceptions of object store packages to ``OSError``."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
