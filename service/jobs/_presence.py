"""This process among those that work on a database's jobs: its heartbeat, and who is dead.

A worker counts its beats up in its row. No clock is compared with another machine's: a worker is dead for an observer when
its count has stood still for ``lease_s`` on the observer's own clock, or, on the same machine, when its process is gone. A
worker that could not beat for half that time knows that it may be taken for dead soon, and stops its work before
(``held``), so that no job runs in two places.
"""

from __future__ import annotations

import os
import secrets
import time
from typing import Any, cast

from sqlalchemy import CursorResult, delete, select, update
from sqlalchemy.orm import Session

from autosbp.processes import start_ticks
from service.db import Database
from service.jobs import _processes
from service.models import DEFAULT_TENANT, WorkerRow

_HELD = 0.5  # of the lease; the rest is for the processes of its jobs to end


class Presence:
    """One worker. ``beat`` is one thread's, ``dead`` another's; ``held`` is anybody's."""

    def __init__(self, database: Database, lease_s: float) -> None:
        self.id = f"wrk-{secrets.token_hex(8)}"
        self._database, self._lease_s = database, lease_s
        self._beaten_s = -lease_s
        self._looked_s = -lease_s
        self._seen: dict[str, tuple[int, float]] = {}

    def beat(self) -> None:
        """Say that this process lives; enters it among the workers if it is not (or no longer) one of them."""
        began_s = time.monotonic()
        with self._database.write() as session:
            mine = update(WorkerRow).where(WorkerRow.id == self.id).values(beats=WorkerRow.beats + 1)
            if not cast("CursorResult[Any]", session.execute(mine)).rowcount:
                pid = os.getpid()
                row = WorkerRow(id=self.id, tenant=DEFAULT_TENANT, machine=_processes.machine(), pid=pid)
                row.started = start_ticks(pid) or 0
                session.add(row)
        self._beaten_s = began_s

    def held(self) -> bool:
        """Whether no other worker can have taken this one for dead."""
        return time.monotonic() - self._beaten_s < _HELD * self._lease_s

    def dead(self, session: Session, *, all_others: bool) -> list[WorkerRow]:
        """The workers that are dead; with ``all_others`` everyone but this one, where there can be no other."""
        rows = session.scalars(select(WorkerRow).where(WorkerRow.id != self.id)).all()
        looked_s, self._looked_s = self._looked_s, time.monotonic()
        if self._looked_s - looked_s > _HELD * self._lease_s:
            self._seen = {}  # while this one could not read, others may not have been able to write
        self._seen = {row.id: self._seen.get(row.id, (-1, 0.0)) for row in rows}
        return [row for row in rows if all_others or self._is_dead(row)]

    def _is_dead(self, row: WorkerRow) -> bool:
        if row.machine == _processes.machine() and start_ticks(row.pid) != row.started:
            return True
        beats, since_s = self._seen[row.id]
        if beats != row.beats:
            self._seen[row.id] = row.beats, time.monotonic()
            return False
        return time.monotonic() - since_s > self._lease_s

    def leave(self, session: Session) -> None:
        """Be no worker any more."""
        session.execute(delete(WorkerRow).where(WorkerRow.id == self.id))


def living(session: Session) -> list[str]:
    """Ids of the workers."""
    return list(session.scalars(select(WorkerRow.id)))
