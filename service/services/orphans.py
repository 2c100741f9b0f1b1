"""Cluster jobs that nobody waits for: of a job that has ended, or of an earlier attempt of one that has not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import select

from service.db import Database
from service.jobs._base import FINAL
from service.launchers._base import Launcher
from service.models import JobRow


def sweep(database: Database, launcher: Launcher) -> list[str]:
    """End the orphans on the cluster; their keys. ``LauncherError`` where the cluster does not answer."""
    found = orphans(launcher.active_keys(), lambda job_id: _is_final(database, job_id))
    for key in found:
        launcher.cancel(key)
    return found


def orphans(keys: Sequence[str], is_final: Callable[[str], bool | None]) -> list[str]:
    """Those of the keys (``JOB-ATTEMPT``) whose job has ended, or has a later attempt among them. A job that this service
    does not know (``is_final`` is None) is another's, and left alone."""
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
    return None if state is None else state in FINAL
