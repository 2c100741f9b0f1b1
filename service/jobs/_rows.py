"""Changes of job rows. Each function works in the caller's writing session and keeps the promises of ``_base``."""

from __future__ import annotations

import secrets

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.jobs._base import FINAL, Document
from service.models import JobRow, now
from service.problems import ProblemError, conflict, problem


def add(session: Session, kind: str, payload: Document, resource: str | None, max_queued: int) -> JobRow:
    """Queue a new job."""
    waiting = session.scalar(select(func.count()).select_from(JobRow).where(JobRow.state == "queued")) or 0
    if waiting >= max_queued:
        detail = f"{waiting} jobs are waiting and the limit is {max_queued}; try again later"
        raise ProblemError(429, "queue-full", "Too many jobs are waiting", detail, limit=max_queued)
    row = JobRow(id=f"job-{secrets.token_hex(8)}", kind=kind, payload=payload, resource=resource)
    session.add(row)
    session.flush()
    return row


def claim(session: Session) -> JobRow | None:
    """Take the oldest queued job and mark it running."""
    oldest = select(JobRow).where(JobRow.state == "queued").order_by(JobRow.created_at, JobRow.id).limit(1)
    row = session.scalar(oldest.with_for_update(skip_locked=True))
    if row is not None:
        row.state, row.started_at, row.attempts = "running", now(), row.attempts + 1
        row.progress, row.message, row.figures = None, "started", {}
        row.revision += 1
    return row


def report(session: Session, job_id: str, progress: float | None, message: str, figures: Document) -> None:
    """Record the progress of a running job."""
    row = session.get_one(JobRow, job_id)
    row.progress, row.message, row.figures = progress, message, figures
    row.revision += 1


def request_cancel(session: Session, job_id: str) -> JobRow | None:
    """Cancel a queued job, or ask for the end of a running one."""
    row = session.get(JobRow, job_id, with_for_update=True)
    if row is None or row.state == "cancelled" or (row.state == "running" and row.cancel_requested):
        return row
    if row.state in FINAL:
        raise conflict(f"job {job_id!r} has already {row.state}")
    row.cancel_requested = True
    row.revision += 1
    if row.state == "queued":
        finish(row, "cancelled")
    return row


def finish(row: JobRow, state: str, *, result: Document | None = None, failure: Document | None = None) -> None:
    """Move a row to a final state."""
    row.state, row.finished_at, row.message = state, now(), state
    row.result = result
    row.problem = {**failure, "instance": f"/v1/jobs/{row.id}"} if failure else None
    if state == "succeeded":
        row.progress = 1.0
    row.revision += 1


def interrupt(row: JobRow, resumable: bool, max_attempts: int, reason: str) -> None:
    """Queue a cut-off job again if its kind allows it, else fail it with ``reason``."""
    if row.cancel_requested:
        finish(row, "cancelled")
    elif resumable and row.attempts < max_attempts:
        row.state, row.started_at, row.progress, row.message = "queued", None, None, f"queued again: {reason}"
        row.revision += 1
    else:
        detail = f"{reason}; started {row.attempts} of {max_attempts} times" if resumable else reason
        finish(row, "failed", failure=problem(500, detail, name="interrupted", title="The job was interrupted"))
