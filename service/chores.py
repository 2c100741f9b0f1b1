"""What is done now and then beside the work: expired entries and old files are dropped, orphans on the cluster are ended.

Every process of a service does these things, whether it answers requests or works on jobs, so that they are done as long as
one lives; of several on PostgreSQL one at a time (``Database.alone``). Each chore is safe to cut off anywhere and to repeat.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from autosbp.errors import AutosbpError
from service.db import Database
from service.launchers._base import Launcher
from service.launchers._choice import launcher_of
from service.objects import Objects
from service.services import artifacts, orphans, retention
from service.services.audit import forget
from service.settings import Settings

_log = logging.getLogger("service")
_CHORING = 0x61757464  # any number that all our processes use for PostgreSQL's advisory lock
_CHECKPOINT_EVERY_S, _FORGET_EVERY_S, _ORPHANS_EVERY_S, _FILES_EVERY_S = 2.0, 600.0, 60.0, 600.0
_OWED_EVERY_S = 10.0
_LEAVE_S = 5.0


@dataclass(frozen=True, slots=True)
class Chore:
    """``work`` is done every ``every_s``; ``name`` says what was not done where it fails."""

    name: str
    work: Callable[[], None]
    every_s: float


def chores_of(settings: Settings, database: Database) -> list[Chore]:
    """Those of a service; ``InputError`` where the launcher of the settings lacks one, or artifacts have no place."""
    objects = Objects(settings.artifacts_url).settle()
    launcher = None if settings.launching is None else launcher_of(settings.launching)
    found = [
        Chore("expired answers and audit entries", lambda: forget(database, settings), _FORGET_EVERY_S),
        Chore("old files", lambda: _drop_files(settings, database, launcher), _FILES_EVERY_S),
        Chore("artifacts that are owed", lambda: artifacts.keep_owed(settings, objects, database), _OWED_EVERY_S),
        Chore("old artifacts", lambda: artifacts.forget(database, objects, settings.files_days), _FILES_EVERY_S),
    ]
    if database.is_embedded:
        found.append(Chore("the database's log", database.checkpoint, _CHECKPOINT_EVERY_S))
    if launcher is not None:
        found.append(Chore(f"orphans on {launcher.name}", lambda: _end_orphans(database, launcher), _ORPHANS_EVERY_S))
    return found


def _drop_files(settings: Settings, database: Database, launcher: Launcher | None) -> None:
    retention.sweep(settings, database, launcher)


def _end_orphans(database: Database, launcher: Launcher) -> None:
    for key in orphans.sweep(database, launcher):
        _log.warning("%s is ended on %s: nobody waits for it", key, launcher.name)


class Chores:
    """A thread that does them in turn, from its start on."""

    def __init__(self, database: Database, chores: Sequence[Chore]) -> None:
        self._database, self._chores = database, chores
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="chores", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Begin no further one; one that waits for a cluster is waited for only briefly."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_LEAVE_S)

    def _run(self) -> None:
        due_s = [float("-inf")] * len(self._chores)
        while not self._stopping.is_set():
            for at, chore in enumerate(self._chores):
                if time.monotonic() >= due_s[at] and not self._stopping.is_set():
                    self._do(chore)
                    due_s[at] = time.monotonic() + chore.every_s
            self._stopping.wait(max(0.0, min(due_s) - time.monotonic()))

    def _do(self, chore: Chore) -> None:
        try:
            with self._database.alone(_CHORING) as mine:
                if mine:
                    chore.work()
        except (AutosbpError, SQLAlchemyError, OSError) as error:
            _log.warning("put off: %s: %s", chore.name, error)
        except Exception:
            _log.exception("put off: %s", chore.name)
