"""Registry of workers, which are processes that work on jobs: heartbeats and detection of dead ones.

A worker increments a counter in its row. Clocks of different machines are never compared: an observer considers a
worker dead if its counter has not changed for ``lease_s`` on the observer's clock, or, on the same machine, if its
process is gone. A worker that has failed to beat for half that time stops its work (``held``) before others consider it
dead, so that no job runs in two places.
"""

from __future__ import annotations

import os
import secrets
import time
from typing import Any, cast

from sqlalchemy import CursorResult, delete, select, update
from sqlalchemy.orm import Session

from autosbp.service.db import Database
from autosbp.service.jobs import _processes
from autosbp.service.models import DEFAULT_TENANT, WorkerRow
from autosbp.utils.processes import start_ticks

_HELD_FRACTION = 0.5  # fraction of the lease; the rest is time for its jobs' processes to end


class WorkerRegistry:
    """This process's registration. One thread calls ``beat``, one ``dead``; any may call ``held``."""

    def __init__(self, database: Database, lease_s: float) -> None:
        self.id = f"wrk-{secrets.token_hex(8)}"
        self._database, self._lease_s = database, lease_s
        self._last_beat_s = -lease_s
        self._last_check_s = -lease_s
        self._seen: dict[str, tuple[int, float]] = {}

    def beat(self) -> None:
        """Increment this worker's counter; registers the worker if it has no row."""
        began_s = time.monotonic()
        with self._database.write() as session:
            mine = update(WorkerRow).where(WorkerRow.id == self.id).values(beats=WorkerRow.beats + 1)
            if not cast("CursorResult[Any]", session.execute(mine)).rowcount:
                pid = os.getpid()
                row = WorkerRow(id=self.id, tenant=DEFAULT_TENANT, machine=_processes.pid_scope(), pid=pid)
                row.started = start_ticks(pid) or 0
                session.add(row)
        self._last_beat_s = began_s

    def held(self) -> bool:
        """Whether no other worker can consider this one dead yet."""
        return time.monotonic() - self._last_beat_s < _HELD_FRACTION * self._lease_s

    def dead(self, session: Session, *, all_others: bool) -> list[WorkerRow]:
        """Return the dead workers; with ``all_others`` every other worker, for a database that only one process uses."""
        rows = session.scalars(select(WorkerRow).where(WorkerRow.id != self.id)).all()
        looked_s, self._last_check_s = self._last_check_s, time.monotonic()
        if self._last_check_s - looked_s > _HELD_FRACTION * self._lease_s:
            self._seen = {}  # while this worker could not read, others may have been unable to write
        self._seen = {row.id: self._seen.get(row.id, (-1, 0.0)) for row in rows}
        return [row for row in rows if all_others or self._is_dead(row)]

    def _is_dead(self, row: WorkerRow) -> bool:
        if row.machine == _processes.pid_scope() and start_ticks(row.pid) != row.started:
            return True
        beats, since_s = self._seen[row.id]
        if beats != row.beats:
            self._seen[row.id] = row.beats, time.monotonic()
            return False
        return time.monotonic() - since_s > self._lease_s

    def unregister(self, session: Session) -> None:
        """Delete this worker's registration."""
        session.execute(delete(WorkerRow).where(WorkerRow.id == self.id))


def worker_ids(session: Session) -> list[str]:
    """Ids of the registered workers."""
    return list(session.scalars(select(WorkerRow.id)))
