"""Format of a backup: a tar of the database, the files, and last ``manifest.json`` with size and SHA-256 of each.

database.sqlite or database.pgdump      session.secret      trials/TRIAL/...      calibrations/JOB/...      owed/JOB
artifacts/JOB/NAME                      manifest.json
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from autosbp.errors import InputError
from autosbp.utils.json_io import loads

SCHEMA = "autosbp.backup/1"
_MANIFEST = "manifest.json"
_CHUNK_BYTES = 2**20
_IN_MEMORY_BYTES = 2**24
_MOST_MANIFEST_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size and SHA-256 of one file."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of a backup.

    Args:
        release: autosbp release that wrote it.
        created_at: creation time in UTC, ISO 8601.
        database: name of the database file.
        revision: the database's schema revision.
        rows: number of rows per table.
        files: every file except the manifest.
        left_out: ids of artifacts whose files were missing or changed; they are not restored.
    """

    release: str
    created_at: str
    database: str
    revision: str
    rows: Mapping[str, int]
    files: Mapping[str, FileEntry]
    left_out: tuple[str, ...] = ()

    def to_json(self) -> bytes:
        """Serialise to JSON."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1, sort_keys=True).encode()

    @staticmethod
    def from_json(text: bytes) -> Manifest:
        """Parse a manifest; raise ``InputError`` if it is not one of this schema."""
        document: Any = loads(text, _MANIFEST)
        if not isinstance(document, dict) or document.pop("schema", None) != SCHEMA:
            raise InputError("backup", _MANIFEST, f"this release reads schema {SCHEMA!r}")
        try:
            files = {name: FileEntry(**entry) for name, entry in document.pop("files").items()}
            return Manifest(files=files, left_out=tuple(document.pop("left_out")), **document)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError("backup", _MANIFEST, f"expected a manifest of autosbp admin backup ({error})") from None


class Writer:
    """Writes one archive. Each file is first copied, so that concurrent changes cannot corrupt the archive."""

    def __init__(self, file: IO[bytes], scratch: Path) -> None:
        self._tar, self._scratch = tarfile.TarFile(fileobj=file, mode="w", format=tarfile.PAX_FORMAT), str(scratch)
        self.files: dict[str, FileEntry] = {}

    def add(self, name: str, source: IO[bytes]) -> FileEntry:
        """Add the rest of ``source``, from its current position."""
        digest, num_bytes = hashlib.sha256(), 0
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES, dir=self._scratch) as copy:
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                num_bytes += len(chunk)
                copy.write(chunk)
            copy.seek(0)
            self._put(name, num_bytes, copy)
        self.files[name] = FileEntry(num_bytes, digest.hexdigest())
        return self.files[name]

    def end(self, manifest: Manifest) -> None:
        """Add the manifest; nothing can be added afterwards."""
        text = manifest.to_json()
        self._put(_MANIFEST, len(text), io.BytesIO(text))
        self._tar.close()

    def _put(self, name: str, num_bytes: int, source: Any) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode = num_bytes, 0o600
        self._tar.addfile(info, source)


ExtractPath = Callable[[str], Path | None]


def read(path: Path, into: ExtractPath) -> Manifest:
    """Read a whole archive and verify every byte.

    Args:
        path: the archive.
        into: maps a file's name to the path to extract it to; None checks it only.

    Returns:
        The manifest.

    Raises:
        InputError: the archive is truncated, changed, or not a backup.
    """
    found: dict[str, FileEntry] = {}
    manifest = None
    with _opened(path) as tar:
        for info in tar:
            source = tar.extractfile(info) if info.isreg() else None
            if source is None or manifest is not None or info.name in found:
                raise InputError(
                    "backup", info.name, ("expected regular files without duplicates, with the manifest last")
                )
            if info.name == _MANIFEST:
                manifest = Manifest.from_json(source.read(_MOST_MANIFEST_BYTES))
            else:
                found[info.name] = _copy_and_hash(source, into(_check_member_name(info.name)))
    if manifest is None:
        raise InputError("backup", str(path), "truncated: the manifest is missing")
    if found != manifest.files:
        names = sorted(
            name for name in found.keys() | manifest.files.keys() if found.get(name) != manifest.files.get(name)
        )
        raise InputError("backup", names[0], "does not match the manifest: the backup was modified or is corrupt")
    return manifest


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path, mode="r:") as tar:
            yield tar
    except (OSError, tarfile.TarError, EOFError) as error:
        raise InputError("backup", str(path), f"expected a backup file of autosbp admin backup ({error})") from None


def _check_member_name(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise InputError("backup", name, "expected file names inside the backup folder")
    return name


def _copy_and_hash(source: IO[bytes], target: Path | None) -> FileEntry:
    digest, num_bytes = hashlib.sha256(), 0
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
    with open("/dev/null" if target is None else target, "wb") as copy:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            num_bytes += len(chunk)
            copy.write(chunk)
    return FileEntry(num_bytes, digest.hexdigest())
