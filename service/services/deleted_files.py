"""Deletion of files whose rows are deleted.

The transaction that deletes the rows records the files in the table ``removed_files``. They are deleted after its
commit, and maintenance deletes those that were missed.

Places are ``trials/TRIAL``, ``jobs/JOB`` (everything that a job left) and ``artifacts/JOB/NAME``.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from autosbp.service.artifact_storage import ArtifactStorage
from autosbp.service.db import Database
from autosbp.service.models import RemovedFilesRow
from autosbp.service.services import artifacts, trials
from autosbp.service.services._queries import new_id
from autosbp.service.settings import Settings

_log = logging.getLogger("autosbp.service")
_CHUNK = 500


def record_for_deletion(session: Session, places: Iterable[str]) -> None:
    """Record places whose files are to be deleted after the session's commit."""
    session.add_all(RemovedFilesRow(id=new_id("rem"), place=place) for place in places)


def delete_files(settings: Settings, database: Database, places: Sequence[str]) -> None:
    """Delete the files of some places; failures are left to ``sweep``."""
    gone = []
    objects = ArtifactStorage(settings.artifacts_url)
    for place in places:
        try:
            _remove_files(settings, objects, place)
            gone.append(place)
        except OSError as error:
            _log.warning("could not remove the files of %s yet: %s", place, error)
    for at in range(0, len(gone), _CHUNK):
        with database.write() as session:
            session.execute(delete(RemovedFilesRow).where(RemovedFilesRow.place.in_(gone[at : at + _CHUNK])))


def sweep(settings: Settings, database: Database) -> None:
    """Delete the recorded files that no process has deleted yet."""
    with database.read() as session:
        places = session.scalars(select(RemovedFilesRow.place).order_by(RemovedFilesRow.created_at)).all()
    for at in range(0, len(places), _CHUNK):
        delete_files(settings, database, places[at : at + _CHUNK])


def _remove_files(settings: Settings, objects: ArtifactStorage, place: str) -> None:
    """Delete the files of one place; raise ``OSError`` if some remain."""
    kind, _, name = place.partition("/")
    if kind == "artifacts":
        objects.remove(name)
        return
    data = settings.data_dir.resolve()
    if kind == "trials":
        folders = [trials.folder(settings, name)]
    else:
        objects.remove_folder(name)
        (artifacts.unsaved_folder(settings) / name).unlink(missing_ok=True)
        folders = [
            *(data / kind / name for kind in ("calibrations", "jobs", "tunings")),
            *settings.launches.glob(f"{name}-*"),
        ]
    for folder in folders:
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)
