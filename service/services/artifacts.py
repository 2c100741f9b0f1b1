"""Artifacts: files that trials and calibrations leave, saved when their job ends, however it ends.

If saving fails, the files stay where the job left them, and a marker with the job's id is put into ``DATA/owed``.
Maintenance retries until the storage accepts them (``retry_unsaved``); such files are not deleted before.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import IO

from sqlalchemy import delete, select, tuple_
from sqlalchemy.orm import Session

from autosbp.sandbox.regular_files import open_regular
from autosbp.service.artifact_storage import ArtifactStorage, StoredFile
from autosbp.service.db import Database
from autosbp.service.jobs._base import FINAL_STATES
from autosbp.service.models import ID_DIGITS, ArtifactRow, JobRow, now
from autosbp.service.problem_details import ProblemError, not_found
from autosbp.service.request_state import AppState
from autosbp.service.services import quotas, trials
from autosbp.service.services._fast_reads import read_page, require_row
from autosbp.service.services._list_page import ListPage
from autosbp.service.services._queries import Paged
from autosbp.service.settings import Settings

_log = logging.getLogger("autosbp.service")
_SAVED_PATTERNS = ("result.json", "results.jsonl", "trials.jsonl", "ranks*.log")
"""File patterns, in the order in which files are saved while there is room."""
_CHUNK = 200
_NOTE_BYTES, _MIN_LOG_BYTES = 64, 4096


def save_files(settings: Settings, objects: ArtifactStorage, session: Session, job: JobRow) -> list[ArtifactRow]:
    """Save the files of a job whose work is over; return the rows to store with its end.

    A failure is logged and retried by ``retry_unsaved``; it does not fail the job.
    """
    rows, failed = _save_all(settings, objects, job, _remaining_bytes(settings, session, job))
    for name, error in failed:
        _log.warning("%s of job %s is not stored yet: %s", name, job.id, error)
    if failed:
        folder = unsaved_folder(settings)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / job.id).touch()
    return rows


def retry_unsaved(settings: Settings, objects: ArtifactStorage, database: Database) -> None:
    """Retry saving the files of the marked jobs; raise ``OSError`` if the storage still fails."""
    for job_id in unsaved_job_ids(settings):
        with database.read() as session:
            job = session.scalar(select(JobRow).where(JobRow.id == job_id))
            room = 0 if job is None else _remaining_bytes(settings, session, job)
        if job is None:  # deleted meanwhile
            objects.remove_folder(job_id)
            (unsaved_folder(settings) / job_id).unlink(missing_ok=True)
            continue
        if job.state not in FINAL_STATES:
            continue
        rows, failed = _save_all(settings, objects, job, room)
        with database.of(job.tenant).write() as session:
            for row in rows:
                session.merge(row)
        if failed:
            raise failed[0][1]
        (unsaved_folder(settings) / job_id).unlink(missing_ok=True)
        _log.warning("stored the files of job %s", job_id)


def unsaved_folder(settings: Settings) -> Path:
    """Folder of markers, an empty file per job whose files are not saved yet."""
    return settings.data_dir.resolve() / "owed"


def unsaved_job_ids(settings: Settings) -> list[str]:
    """Ids of the jobs with markers."""
    try:
        return sorted(os.listdir(unsaved_folder(settings)))
    except FileNotFoundError:
        return []


def _remaining_bytes(settings: Settings, session: Session, job: JobRow) -> int:
    """Bytes that may be saved of a job."""
    left = quotas.limit_bytes(settings, quotas.FILES) - quotas.used_bytes(
        session, quotas.FILES, job.tenant, without_job=job.id
    )
    return max(0, min(settings.job_files_bytes, left))


def _save_all(
    settings: Settings, objects: ArtifactStorage, job: JobRow, room: int
) -> tuple[list[ArtifactRow], list[tuple[str, OSError]]]:
    """Save files; return the rows of the saved ones and the names and errors of the others."""
    rows, failed = list[ArtifactRow](), list[tuple[str, OSError]]()
    for path in _files_to_save(settings, job):
        try:
            kept = _put(objects, _storage_name(job.id, path.name), path, room)
        except _UnsavableFileError as never:
            _log.warning("could not keep %s of job %s: %s", path.name, job.id, never)
            continue
        except OSError as error:
            if path.exists():
                failed.append((path.name, error))
            continue
        room -= kept.num_bytes
        identifier = f"art-{hashlib.sha256(_storage_name(job.id, path.name).encode()).hexdigest()[:ID_DIGITS]}"
        row = ArtifactRow(id=identifier, tenant=job.tenant, job_id=job.id, name=path.name)
        row.num_bytes, row.sha256 = kept.num_bytes, kept.sha256
        rows.append(row)
    return rows, failed


class _UnsavableFileError(Exception):
    """A file can never be saved, so retrying would only delay other files."""


def _put(objects: ArtifactStorage, place: str, path: Path, room: int) -> StoredFile:
    """Save a file; of a log longer than ``room``, save its beginning and end."""
    try:
        file = open_regular(path)
    except (FileNotFoundError, PermissionError) as error:
        raise _UnsavableFileError(f"it is not readable: {error.strerror}") from None
    with file:
        num_bytes = os.fstat(file.fileno()).st_size
        if num_bytes <= room:
            return objects.put(place, file)
        if path.suffix != ".log" or room < _MIN_LOG_BYTES:
            raise _UnsavableFileError(f"it has {num_bytes} bytes, but only {room} more may be stored")
        with tempfile.SpooledTemporaryFile(max_size=2**20) as cut:
            _cut(file, num_bytes, room, cut)
            cut.seek(0)
            return objects.put(place, cut)


def _cut(file: IO[bytes], num_bytes: int, room: int, target: IO[bytes]) -> None:
    part = (room - _NOTE_BYTES) // 2
    target.write(file.read(part))
    target.write(f"\n[{num_bytes - 2 * part} bytes omitted]\n".encode())
    file.seek(num_bytes - part)
    target.write(file.read(part))


def _files_to_save(settings: Settings, job: JobRow) -> Iterator[Path]:
    """Files to save, one per name; those of a launcher's ranks lie in the folder shared by the nodes."""
    own = (
        trials.folder(settings, job.payload["trial_id"])
        if job.kind == "trial"
        else settings.data_dir.resolve() / ("tunings" if job.kind == "tune" else "calibrations") / job.id
    )
    found = {
        path.name: path
        for folder in (own, *sorted(settings.launches.glob(f"{job.id}-*/work")))
        for pattern in _SAVED_PATTERNS
        for path in sorted(folder.glob(pattern))
        if path.is_file() and not path.is_symlink()
    }
    yield from found.values()


def _storage_name(job_id: str, name: str) -> str:
    return f"{job_id}/{name}"


def get(state: AppState, artifact_id: str) -> ArtifactRow:
    """Return an artifact, or raise 404."""
    return require_row(state.database, ArtifactRow, artifact_id, "artifact")


def open_content(state: AppState, row: ArtifactRow) -> IO[bytes]:
    """Open an artifact's content; the caller closes it.

    Raises ``ProblemError`` 404 if it is gone and 503 if the storage does not answer.
    """
    try:
        return ArtifactStorage(state.settings.artifacts_url).open(_storage_name(row.job_id, row.name))
    except OSError as error:
        if isinstance(error, FileNotFoundError) and state.places.misplaced_storage() is None:
            raise not_found("content of artifact", row.id) from None
        _log.warning("cannot read artifact %s: %s", row.id, error)
        detail = "the artifact store does not respond; try again later"
        raise ProblemError(503, "storage-unavailable", "The storage cannot be used now", detail) from None


def listing(state: AppState, window: ListPage, /, **equal: object) -> Paged[ArtifactRow]:
    """Return a page of artifacts."""
    return read_page(state.database, ArtifactRow, window, **equal)


def delete_expired(database: Database, objects: ArtifactStorage, days: float) -> None:
    """Delete artifacts older than ``days``; raise ``OSError`` if the storage does not answer."""
    until = now() - timedelta(days=days)
    old_enough = select(ArtifactRow).where(ArtifactRow.created_at <= until).limit(_CHUNK)
    while True:
        with database.read() as session:
            old = session.scalars(old_enough).all()
        if not old:
            return
        for each in old:
            objects.remove(_storage_name(each.job_id, each.name))
        keys = [(each.id, each.tenant) for each in old]
        with database.write() as session:
            session.execute(delete(ArtifactRow).where(tuple_(ArtifactRow.id, ArtifactRow.tenant).in_(keys)))
