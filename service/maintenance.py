"""Periodic maintenance: delete expired entries and old files, end orphaned cluster jobs, checkpoint the database.

Every process of a service runs these tasks, whether it answers requests or works on jobs, so they run as long as one
process lives. With several processes on PostgreSQL, one at a time runs a task (``Database.alone``). Each task may be
interrupted anywhere and repeated. Intervals are fixed and missed runs are not made up for, so a thread is enough and no
scheduler with a store is needed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from autosbp.errors import AutosbpError
from autosbp.service.artifact_storage import ArtifactStorage
from autosbp.service.db import Database
from autosbp.service.launchers._base import Launcher
from autosbp.service.launchers._from_settings import make_launcher
from autosbp.service.services import artifacts, deleted_files, orphaned_jobs, retention
from autosbp.service.services.audit import delete_expired
from autosbp.service.settings import Settings

_log = logging.getLogger("autosbp.service")
_MAINTENANCE_LOCK_KEY = (
    0x61757464  # key of PostgreSQL's advisory lock for maintenance; any number that all our processes share
)
_CHECKPOINT_EVERY_S, _FORGET_EVERY_S, _ORPHANS_EVERY_S, _FILES_EVERY_S = 2.0, 600.0, 60.0, 600.0
_RETRY_FILES_EVERY_S = 10.0
_STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class MaintenanceTask:
    """``work`` runs every ``every_s`` seconds; ``name`` identifies it in log lines."""

    name: str
    work: Callable[[], None]
    every_s: float


def maintenance_tasks(settings: Settings, database: Database) -> list[MaintenanceTask]:
    """Maintenance tasks of a service with these settings.

    Raises ``InputError`` if the configured launcher lacks a requirement or the artifact storage cannot be used.
    """
    objects = ArtifactStorage(settings.artifacts_url).pin_folder()
    launcher = None if settings.launching is None else make_launcher(settings.launching)
    found = [
        MaintenanceTask(
            "expired idempotent responses and audit entries",
            lambda: delete_expired(database, settings),
            _FORGET_EVERY_S,
        ),
        MaintenanceTask("old files", lambda: _drop_files(settings, database, launcher), _FILES_EVERY_S),
        MaintenanceTask(
            "files of deleted resources", lambda: deleted_files.sweep(settings, database), _RETRY_FILES_EVERY_S
        ),
        MaintenanceTask(
            "artifacts still to be stored",
            lambda: artifacts.retry_unsaved(settings, objects, database),
            _RETRY_FILES_EVERY_S,
        ),
        MaintenanceTask(
            "old artifacts", lambda: artifacts.delete_expired(database, objects, settings.files_days), _FILES_EVERY_S
        ),
    ]
    if database.is_sqlite:
        found.append(MaintenanceTask("the database's log", database.checkpoint, _CHECKPOINT_EVERY_S))
    if launcher is not None:
        found.append(
            MaintenanceTask(f"orphans on {launcher.name}", lambda: _end_orphans(database, launcher), _ORPHANS_EVERY_S)
        )
    return found


def _drop_files(settings: Settings, database: Database, launcher: Launcher | None) -> None:
    retention.sweep(settings, database, launcher)


def _end_orphans(database: Database, launcher: Launcher) -> None:
    for key in orphaned_jobs.sweep(database, launcher):
        _log.warning("cancelling %s on %s: no job is waiting for it", key, launcher.name)


class Maintenance:
    """A thread that runs the tasks one after another."""

    def __init__(self, database: Database, chores: Sequence[MaintenanceTask]) -> None:
        self._database, self._tasks = database, chores
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="chores", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Start no further task and wait up to ``_STOP_TIMEOUT_S`` for the running one, which may be waiting for a cluster."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        due_s = [float("-inf")] * len(self._tasks)
        while not self._stopping.is_set():
            for at, chore in enumerate(self._tasks):
                if time.monotonic() >= due_s[at] and not self._stopping.is_set():
                    self._run_task(chore)
                    due_s[at] = time.monotonic() + chore.every_s
            self._stopping.wait(max(0.0, min(due_s) - time.monotonic()))

    def _run_task(self, chore: MaintenanceTask) -> None:
        try:
            with self._database.alone(_MAINTENANCE_LOCK_KEY) as mine:
                if mine:
                    chore.work()
        except (AutosbpError, SQLAlchemyError, OSError) as error:
            _log.warning("postponed: %s: %s", chore.name, error)
        except Exception:
            _log.exception("put off: %s", chore.name)
