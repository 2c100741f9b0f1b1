"""Recovery of the jobs of dead workers.

Workers sweep one at a time. A sweep may be repeated after a crash at any point, because the dead worker's row is
deleted last.
"""

from __future__ import annotations

import logging

from sqlalchemy import delete

from autosbp.service.db import Database
from autosbp.service.jobs import _job_rows, _processes
from autosbp.service.jobs._worker_registry import WorkerRegistry, worker_ids
from autosbp.service.models import JobRow, WorkerRow

_log = logging.getLogger(__name__)
_SWEEP_LOCK_KEY = 0x61757463  # key of PostgreSQL's advisory lock for sweeps; any number that all our processes share


def sweep(database: Database, presence: WorkerRegistry, reason: str) -> None:
    """Requeue the jobs of dead workers, after killing what is left of their processes on this machine.

    Args:
        database: with the jobs.
        presence: the registry of workers.
        reason: text for the requeued jobs.
    """
    with database.alone(_SWEEP_LOCK_KEY) as mine:
        if not mine:
            return
        with database.read() as session:
            dead = presence.dead(session, all_others=database.is_sqlite)
        ids = [worker.id for worker in dead]
        with database.write() as session:
            alive = [worker for worker in worker_ids(session) if worker not in ids]
            _job_rows.revoke_leases(session, JobRow.worker.is_(None) | JobRow.worker.not_in(alive))
        for worker in dead:
            _log.warning("worker %s is dead; requeued its jobs", worker.id)
            if worker.machine == _processes.pid_scope():
                _processes.kill_tagged(worker.id)
        with database.write() as session:
            _job_rows.requeue(session, JobRow.worker.is_(None), reason)
            session.execute(delete(WorkerRow).where(WorkerRow.id.in_(ids)))
