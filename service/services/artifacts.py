"""Artifacts: files that trials and calibrations leave, kept when their job ends, however it ends.

What cannot be kept then stays where the job left it, and its job in the folder ``DATA/owed``: a chore keeps it once the store
takes it (``keep_owed``), and nothing that is owed is removed before.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import IO

from sqlalchemy import delete, select, tuple_

from service.db import Database
from service.jobs._base import FINAL
from service.models import ArtifactRow, JobRow, now
from service.objects import Objects
from service.problems import ProblemError, not_found
from service.services import trials
from service.services._pictures import pictured, pictures
from service.services._store import Paged
from service.services._window import Window
from service.settings import Settings
from service.state import State

_log = logging.getLogger("service")
_KEPT = ("log.txt", "ranks*.log", "result.json", "results.jsonl")
_CHUNK = 200
_MOST_BYTES = 2**30


def keep(settings: Settings, objects: Objects, job: JobRow) -> list[ArtifactRow]:
    """Keep the files of a job whose work is over; their rows, which are to be stored with its end. What cannot be kept now is
    owed, and said in the log: no job fails for it."""
    rows, failed = _kept(settings, objects, job)
    for name, error in failed:
        _log.warning("%s of job %s is not kept yet: %s", name, job.id, error)
    if failed:
        folder = owed_folder(settings)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / job.id).touch()
    return rows


def keep_owed(settings: Settings, objects: Objects, database: Database) -> None:
    """Keep what could not be kept as its jobs ended; ``OSError`` where the store still does not take it."""
    for job_id in owed(settings):
        with database.read() as session:
            job = session.scalar(select(JobRow).where(JobRow.id == job_id))
        if job is None or job.state not in FINAL:
            continue
        rows, failed = _kept(settings, objects, job)
        with database.of(job.tenant).write() as session:
            for row in rows:
                session.merge(row)
        if failed:
            raise failed[0][1]
        (owed_folder(settings) / job_id).unlink(missing_ok=True)
        _log.warning("what job %s has left is kept now", job_id)


def owed_folder(settings: Settings) -> Path:
    """Where an empty file of each job is whose files are to be kept."""
    return settings.data_dir.resolve() / "owed"


def owed(settings: Settings) -> list[str]:
    """The ids of those jobs."""
    try:
        return sorted(os.listdir(owed_folder(settings)))
    except FileNotFoundError:
        return []


def _kept(settings: Settings, objects: Objects, job: JobRow) -> tuple[list[ArtifactRow], list[tuple[str, OSError]]]:
    """Rows of the files that are kept now, and names of those that were not, with the error."""
    rows, failed = list[ArtifactRow](), list[tuple[str, OSError]]()
    for path in _left_by(settings, job):
        if (never := _refused(path)) is not None:
            _log.warning("%s of job %s is not kept: %s", path.name, job.id, never)
            continue
        try:
            kept = objects.put(_place(job.id, path.name), path)
        except OSError as error:
            if path.exists():
                failed.append((path.name, error))
            continue
        identifier = f"art-{hashlib.sha256(_place(job.id, path.name).encode()).hexdigest()[:16]}"
        row = ArtifactRow(id=identifier, tenant=job.tenant, job_id=job.id, name=path.name)
        row.num_bytes, row.sha256 = kept.num_bytes, kept.sha256
        rows.append(row)
    return rows, failed


def _refused(path: Path) -> str | None:
    """Why a file will never be kept, however well the store is: what is owed for it would keep others from their turn."""
    try:
        with path.open("rb") as file:
            too_large = os.fstat(file.fileno()).st_size > _MOST_BYTES
    except (FileNotFoundError, PermissionError) as error:
        return f"it cannot be read: {error.strerror}"
    except OSError:
        return None  # such as a disk that fails: another time, perhaps
    return f"it has more than {_MOST_BYTES} bytes" if too_large else None


def _left_by(settings: Settings, job: JobRow) -> Iterator[Path]:
    """One of each name: of ranks that a launcher started, they are in the folder that the nodes share."""
    own = (
        trials.folder(settings, job.payload["trial_id"])
        if job.kind == "trial"
        else settings.data_dir.resolve() / "calibrations" / job.id
    )
    found = {
        path.name: path
        for folder in (own, *sorted(settings.launches.glob(f"{job.id}-*/work")))
        for pattern in _KEPT
        for path in sorted(folder.glob(pattern))
        if path.is_file() and not path.is_symlink()
    }
    yield from found.values()


def _place(job_id: str, name: str) -> str:
    return f"{job_id}/{name}"


def get(state: State, artifact_id: str) -> ArtifactRow:
    """One artifact, or 404."""
    return pictured(state.database, ArtifactRow, artifact_id, "artifact")


def opened(state: State, row: ArtifactRow) -> IO[bytes]:
    """What it holds, which the caller closes; ``ProblemError`` 404 where it is gone, 503 where the store does not answer."""
    try:
        return Objects(state.settings.artifacts_url).open(_place(row.job_id, row.name))
    except OSError as error:
        if isinstance(error, FileNotFoundError) and state.places.ailment() is None:
            raise not_found("content of artifact", row.id) from None
        _log.warning("artifact %s cannot be read: %s", row.id, error)
        detail = "the store of artifacts does not answer; try again later"
        raise ProblemError(503, "storage-unavailable", "The storage cannot be used now", detail) from None


def listing(state: State, window: Window, /, **equal: object) -> Paged[ArtifactRow]:
    """A page of artifacts."""
    return pictures(state.database, ArtifactRow, window, **equal)


def forget(database: Database, objects: Objects, days: float) -> None:
    """Remove those that were kept for so long; ``OSError`` where the store does not answer."""
    until = now() - timedelta(days=days)
    old_enough = select(ArtifactRow).where(ArtifactRow.created_at <= until).limit(_CHUNK)
    while True:
        with database.read() as session:
            old = session.scalars(old_enough).all()
        if not old:
            return
        for each in old:
            objects.remove(_place(each.job_id, each.name))
        keys = [(each.id, each.tenant) for each in old]
        with database.write() as session:
            session.execute(delete(ArtifactRow).where(tuple_(ArtifactRow.id, ArtifactRow.tenant).in_(keys)))
