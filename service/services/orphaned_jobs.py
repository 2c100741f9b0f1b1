"""Cluster jobs that nobody waits for: of an ended job, or of an earlier attempt at a running one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import select

from autosbp.service.db import Database
from autosbp.service.jobs._base import FINAL_STATES
from autosbp.service.launchers._base import Launcher
from autosbp.service.models import JobRow


def sweep(database: Database, launcher: Launcher) -> list[str]:
    """Cancel orphaned jobs on the cluster and return their keys; raise ``LauncherError`` if the cluster does not answer."""
    found = orphans(launcher.active_keys(), lambda job_id: _is_final(database, job_id))
    for key in found:
        launcher.cancel(key)
    return found


def orphans(keys: Sequence[str], is_final: Callable[[str], bool | None]) -> list[str]:
    """Select the orphaned keys.

    Args:
        keys: of active cluster jobs, in the form ``JOB-ATTEMPT``.
        is_final: whether a job has ended; None for a job of another service, which is left alone.

    Returns:
        Keys whose job has ended, or has a later attempt among ``keys``.
    """
    attempts: dict[str, list[int]] = {}
    for key in keys:
        job_id, _, attempt = key.rpartition("-")
        if job_id and attempt.isdigit():
            attempts.setdefault(job_id, []).append(int(attempt))
    found = []
    for job_id, numbers in sorted(attempts.items()):
        final = is_final(job_id)
        if final is not None:
            found += [f"{job_id}-{each}" for each in sorted(numbers) if final or each != max(numbers)]
    return found


def _is_final(database: Database, job_id: str) -> bool | None:
    with database.read() as session:
        state = session.scalar(select(JobRow.state).where(JobRow.id == job_id))
    return None if state is None else state in FINAL_STATES
