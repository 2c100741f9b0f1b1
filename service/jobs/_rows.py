"""Changes of job rows. Each function works in the caller's writing session and keeps the promises of ``_base``."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service import tracing
from service.jobs._base import FINAL, Document, Interrupted
from service.models import DEFAULT_TENANT, JobRow, now
from service.problems import ProblemError, conflict, problem
from service.tenancy import tenant_of

_AGAIN = "queued again: "


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How many jobs may wait: altogether, and of one tenant."""

    all: int
    tenant: int


def add(
    session: Session,
    kind: str,
    payload: Document,
    resource: str | None,
    job_id: str | None,
    limits: QueueLimits,
) -> JobRow:
    """Queue a new job of the session's tenant, or of the default one."""
    jobs = JobRow.__table__  # the table itself: a tenant's session would see the tenant's jobs alone
    counted = select(jobs.c.tenant, func.count()).where(jobs.c.state == "queued").group_by(jobs.c.tenant)
    waiting: dict[str, int] = {row[0]: row[1] for row in session.execute(counted)}
    owner = tenant_of(session) or DEFAULT_TENANT
    _check_room(sum(waiting.values()), limits.all)
    _check_room(waiting.get(owner, 0), limits.tenant)
    row = JobRow(
        id=job_id or f"job-{secrets.token_hex(8)}", tenant=owner, kind=kind, payload=payload, resource=resource
    )
    if (trace := tracing.asked()) is not None:
        row.trace = trace
    session.add(row)
    session.flush()
    return row


def _check_room(waiting: int, limit: int) -> None:
    if waiting >= limit:
        detail = f"{waiting} jobs are waiting and the limit is {limit}; try again later"
        raise ProblemError(429, "queue-full", "Too many jobs are waiting", detail, limit=limit)


def one(session: Session, job_id: str, *, lock: bool = False) -> JobRow | None:
    """A job by its id alone, which is unique."""
    query = select(JobRow).where(JobRow.id == job_id)
    return session.scalar(query.with_for_update() if lock else query)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a job, until somebody else takes it with a higher fence."""

    job_id: str
    tenant: str
    kind: str
    fence: int
    trace: Document | None = None


def take(session: Session, job_id: str, worker: str) -> Lease | None:
    """Take a job for a worker, whoever had it before; None if it has ended."""
    row = one(session, job_id, lock=True)
    if row is None or row.state in FINAL:
        return None
    row.worker, row.fence = worker, row.fence + 1
    if row.cancel_requested:
        finish(row, "cancelled")
        return None
    return Lease(row.id, row.tenant, row.kind, row.fence, row.trace if tracing.is_on() else None)


def held(session: Session, lease: Lease) -> JobRow:
    """The locked row of a job that is still ours; ``Interrupted`` if it is not."""
    row = one(session, lease.job_id, lock=True)
    if row is None or row.fence != lease.fence:
        raise Interrupted(f"job {lease.job_id} was taken by another worker")
    return row


def attempt(session: Session, lease: Lease, resumable: bool, max_attempts: int) -> JobRow | None:
    """Begin an attempt at a job; None if it ended without: it was cancelled, or there were as many as may be."""
    row = held(session, lease)
    if row.state in FINAL:  # cancelled since it was taken
        return None
    if row.attempts >= (max_attempts if resumable else 1):
        reason = row.message.removeprefix(_AGAIN) or "interrupted"
        detail = f"{reason}; started {row.attempts} of {max_attempts} times" if resumable else reason
        finish(row, "failed", failure=problem(500, detail, name="interrupted", title="The job was interrupted"))
        return None
    row.state, row.started_at, row.attempts = "running", now(), row.attempts + 1
    row.progress, row.message, row.figures = None, "started", {}
    if tracing.is_on():
        row.trace = tracing.attempted(lease.trace)
    row.revision += 1
    return row


def release(session: Session, living: Collection[str], reason: str) -> None:
    """Take the jobs away from every worker but the ``living``: raise their fences, and queue them again."""
    ours = JobRow.worker.in_(living)
    taken = ((JobRow.state == "queued") & JobRow.worker.is_not(None)) | (JobRow.state == "running")
    orphaned = select(JobRow).where(taken, JobRow.worker.is_(None) | ~ours).order_by(JobRow.id)
    for row in session.scalars(orphaned.with_for_update()):
        row.worker, row.fence = None, row.fence + 1
        if row.cancel_requested:
            finish(row, "cancelled")
        elif row.state == "running":
            row.state, row.started_at, row.progress, row.message = "queued", None, None, f"{_AGAIN}{reason}"
            row.revision += 1


def report(session: Session, lease: Lease, progress: float | None, message: str, figures: Document) -> None:
    """Record the progress of a running job."""
    row = held(session, lease)
    row.progress, row.message, row.figures = progress, message, figures
    row.revision += 1


def request_cancel(session: Session, job_id: str, check: Callable[[JobRow], None] | None = None) -> JobRow | None:
    """Cancel a queued job, or ask for the end of a running one; ``check`` may refuse by raising."""
    row = one(session, job_id, lock=True)
    if row is not None and check is not None:
        check(row)
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
