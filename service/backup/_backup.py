"""Creating a backup while the service runs.

The database is dumped first, as a consistent snapshot; the files it refers to follow. A file that disappears in between
was deleted or expired meanwhile: its artifact is left out, so that everything restored is complete.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import autosbp
from autosbp.errors import InputError, ServiceError
from autosbp.service.artifact_storage import ArtifactStorage
from autosbp.service.backup import _archive, _stores
from autosbp.service.backup._archive import Manifest, Writer
from autosbp.service.backup._stores import SnapshotContents, Store
from autosbp.service.db import Database
from autosbp.service.settings import Settings

SECRET = "session.secret"  # noqa: S105 - the name of a file
FOLDERS = ("trials", "calibrations", "owed")
"""Folders in the data folder; each file or folder in them belongs to a trial or job."""


def backup(settings: Settings, target: Path) -> tuple[Path, Manifest]:
    """Write a backup atomically and verify it.

    Args:
        settings: of the service to back up.
        target: a new file, or a folder in which the backup is named after the time.

    Returns:
        The backup's path and manifest.

    Raises:
        InputError: the target exists, or there is no service's database.
        ServiceError: something cannot be read or written.
    """
    moment = datetime.now(UTC)
    path = target / f"autosbp-{moment:%Y%m%dT%H%M%SZ}.tar" if target.is_dir() else target
    if path.exists():
        raise InputError("target", str(path), "expected the name of a new file or of a folder")
    database = Database(settings.url, settings.lock_timeout_s)
    try:
        with tempfile.TemporaryDirectory(prefix=".backup-", dir=path.parent) as folder:
            part = Path(folder) / "part.tar"
            manifest = _write_archive(settings, database, part, moment)
            _check(_stores.store_of(database), part, manifest, Path(folder))
            part.rename(path)
            sync_folder(path.parent)
        return path, manifest
    except OSError as error:
        raise ServiceError(f"could not create a backup at {path}: {error}") from None
    finally:
        database.close()


def _write_archive(settings: Settings, database: Database, part: Path, at: datetime) -> Manifest:
    """Write the archive and sync it to disk."""
    store, dump = _stores.store_of(database), part.with_name("dump")
    found = store.dump(dump)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        writer = Writer(file, part.parent)
        with dump.open("rb") as source:
            writer.add(store.file, source)
        dump.unlink()
        for name, path in _files(settings.data_dir.resolve(), found):
            try:
                with path.open("rb") as source:
                    writer.add(name, source)
            except FileNotFoundError:
                continue
        left_out = _add_artifacts(writer, ArtifactStorage(settings.artifacts_url), found)
        manifest = Manifest(
            release=autosbp.__version__,
            created_at=at.isoformat(timespec="seconds"),
            database=store.file,
            revision=found.revision,
            rows=found.rows,
            files=writer.files,
            left_out=tuple(left_out),
        )
        writer.end(manifest)
        file.flush()
        os.fsync(file.fileno())
    return manifest


def _files(data: Path, found: SnapshotContents) -> Iterator[tuple[str, Path]]:
    """Files of the data folder that the database refers to, except artifacts."""
    yield SECRET, data / SECRET
    for folder, known in zip(FOLDERS, (found.trials, found.jobs, found.jobs), strict=True):
        for own in sorted(known & set(_names(data / folder))):
            for path in [data / folder / own, *sorted((data / folder / own).rglob("*"))]:
                if path.is_file() and not path.is_symlink():
                    yield path.relative_to(data).as_posix(), path


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _add_artifacts(writer: Writer, objects: ArtifactStorage, found: SnapshotContents) -> Iterator[str]:
    """Add the artifact files; yield the ids of artifacts whose files are missing or differ from their rows."""
    for identifier, job, name, sha256 in sorted(found.artifacts):
        try:
            with objects.open(f"{job}/{name}") as source:
                entry = writer.add(f"artifacts/{job}/{name}", source)
        except FileNotFoundError:
            yield identifier
            continue
        if entry.sha256 != sha256:
            yield identifier


def _check(store: Store, part: Path, manifest: Manifest, scratch: Path) -> None:
    """Read the archive back and check it."""
    folder = scratch / "check"
    folder.mkdir()
    if _archive.read(part, extract_only(folder, store.file)) != manifest:
        raise ServiceError("the backup failed verification after writing")
    store.check(folder / store.file, manifest.rows)


def extract_only(folder: Path, *names: str) -> _archive.ExtractPath:
    """Extract only the files with these names from an archive."""
    return lambda name: folder / name if name in names else None


def sync_folder(folder: Path) -> None:
    """Sync a folder's directory entries to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
