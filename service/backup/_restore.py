"""Restoring a backup for a service that is stopped.

The backup is read and verified completely before anything is touched. Old data is then moved aside, into
``replaced-...`` in the data folder, and moved back if anything fails; it is deleted once the restored database was
read. A process that dies meanwhile leaves the marker ``restoring``, with which no service starts, and no data is lost.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from autosbp.errors import InputError, ServiceError
from autosbp.service.artifact_storage import ArtifactStorage
from autosbp.service.backup import _archive, _stores
from autosbp.service.backup._archive import Manifest
from autosbp.service.backup._backup import FOLDERS, SECRET, sync_folder
from autosbp.service.backup._stores import Store
from autosbp.service.db import Database, one_line_message
from autosbp.service.file_permissions import restrict_permissions
from autosbp.service.process_lock import RESTORE_MARKER, ProcessLock
from autosbp.service.settings import Settings

_OUTCOMES_FOLDER = "jobs"
"""Folder of job outcomes that are not stored yet; they belong to the replaced database."""


def restore(settings: Settings, backup: Path, *, replace: bool = False) -> Manifest:
    """Restore a backup and return its manifest.

    Args:
        settings: of the stopped service.
        backup: the archive.
        replace: replace existing data.

    Raises:
        InputError: the backup is damaged, of another kind of database or of a newer release, or data exists and
            ``replace`` is False.
        ServiceError: a service is running, or storage fails.
    """
    restrict_permissions(settings)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    database = Database(settings.url, settings.lock_timeout_s)
    hold = ProcessLock(database, settings.data_dir)
    try:
        hold.take(restoring=True)
        store = _stores.store_of(database)
        store.require_unused()
        with tempfile.TemporaryDirectory(prefix=".restore-", dir=settings.data_dir.resolve()) as folder:
            staging = Path(folder)
            manifest = _archive.read(backup, lambda name: staging / name)
            _check(settings, database, store, staging, manifest, replace)
            _install(settings, database, store, staging, manifest)
        return manifest
    except SQLAlchemyError as error:
        raise ServiceError(f"{database.redacted_url} cannot be used: {one_line_message(error)}") from None
    except OSError as error:
        raise ServiceError(f"could not restore {backup}: {error}") from None
    finally:
        database.close()
        hold.release()


def _check(
    settings: Settings, database: Database, store: Store, staging: Path, manifest: Manifest, replace: bool
) -> None:
    if manifest.database != store.file:
        raise InputError(
            "backup", manifest.database, f"expected a backup with {store.file} for {database.redacted_url}"
        )
    if manifest.revision not in database.revisions:
        known = f"this release supports schemas {database.revisions[-1]} to {database.revisions[0]}"
        raise InputError("backup", f"schema {manifest.revision}", known)
    store.check(staging / store.file, manifest.rows)
    used = [name for name in (*FOLDERS, SECRET) if _is_used(settings.data_dir / name)]
    if not replace and (used or not store.is_empty()):
        what = f"{settings.data_dir} and {database.redacted_url}"
        raise InputError("data_dir", what, "already has data; overwrite it with --replace")


def _is_used(path: Path) -> bool:
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def _install(settings: Settings, database: Database, store: Store, staging: Path, manifest: Manifest) -> None:
    data = settings.data_dir.resolve()
    mark, aside = data / RESTORE_MARKER, data / f"replaced-{secrets.token_hex(4)}"
    mark.touch()
    sync_folder(data)
    aside.mkdir()
    objects = ArtifactStorage(settings.artifacts_url)
    places = {name: data / name for name in (*FOLDERS, SECRET)}
    if objects.folder is not None:
        places["artifacts"] = objects.folder
    with _moved_aside({**places, _OUTCOMES_FOLDER: data / _OUTCOMES_FOLDER}, aside):
        for name, place in places.items():
            if (staging / name).exists():
                shutil.move(staging / name, place)
        if objects.folder is None:
            _upload(objects, staging / "artifacts")
        store.load(staging / store.file, manifest.left_out, aside)
    left = {"artifacts": manifest.rows["artifacts"] - len(manifest.left_out)} if manifest.left_out else {}
    with database.engine.connect() as connection:
        _stores.require_rows(_stores.row_counts(connection, manifest.rows), {**manifest.rows, **left})
    os.sync()
    mark.unlink()
    shutil.rmtree(aside)


@contextmanager
def _moved_aside(places: dict[str, Path], aside: Path) -> Iterator[None]:
    """Move existing files aside, and back if the block fails."""
    there = {name: place for name, place in places.items() if place.exists()}
    for name, place in there.items():
        shutil.move(place, aside / name)
    try:
        yield
    except BaseException:
        for name, place in places.items():
            if place.is_dir():
                shutil.rmtree(place)
            else:
                place.unlink(missing_ok=True)
            if name in there:
                shutil.move(aside / name, place)
        raise


def _upload(objects: ArtifactStorage, folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                objects.put(path.relative_to(folder).as_posix(), file)
