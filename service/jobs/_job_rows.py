"""Changes of job rows. Each function runs in the caller's writing session and keeps the guarantees of ``_base``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from autosbp.service import tracing
from autosbp.service.jobs._base import FINAL_STATES, Document, Interrupted
from autosbp.service.jobs._fair_queue import FairQueue, add_to_finish_tag, correct_finish_tag, next_job
from autosbp.service.models import DEFAULT_TENANT, JobRow, now
from autosbp.service.problem_details import ProblemError, conflict, problem
from autosbp.service.tenancy import tenant_of

_REQUEUED_PREFIX = "queued again: "
_IS_CLAIMED = (JobRow.state == "running") | ((JobRow.state == "queued") & JobRow.worker.is_not(None))
"""Jobs claimed by a worker; workers of an earlier release leave the state at queued."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Limits of waiting jobs and of their expected seconds, in total and per tenant."""

    all: int
    tenant: int
    all_s: float = math.inf
    max_seconds_of_tenant: float = math.inf


def add(session: Session, row: JobRow, limits: QueueLimits) -> JobRow:
    """Queue a new job of the session's tenant, or of the default one; raise ``ProblemError`` 429 if the queue is full."""
    jobs = JobRow.__table__  # the bare table: a tenant's session would count only that tenant's jobs
    counted = select(jobs.c.tenant, func.count(), func.sum(jobs.c.expected_s)).where(jobs.c.state == "queued")
    waiting = {tenant: (count, seconds) for tenant, count, seconds in session.execute(counted.group_by(jobs.c.tenant))}
    row.tenant = tenant_of(session) or DEFAULT_TENANT
    mine_count, mine_s = waiting.get(row.tenant, (0, 0.0))
    counts, seconds = [count for count, _ in waiting.values()], [each_s for _, each_s in waiting.values()]
    _check_room(sum(counts), sum(seconds), row.expected_s, limits.all, limits.all_s)
    _check_room(mine_count, mine_s, row.expected_s, limits.tenant, limits.max_seconds_of_tenant)
    if (trace := tracing.request_context()) is not None:
        row.trace = trace
    session.add(row)
    session.flush()
    return row


def _check_room(count: int, waiting_s: float, more_s: float, most: int, most_s: float) -> None:
    if count >= most:
        detail = f"{count} jobs are waiting, the limit is {most}; try again later"
        raise ProblemError(429, "queue-full", "Too many jobs are waiting", detail, limit=most)
    # exempt if no job waits: a job longer than the limit would never be accepted
    if count and waiting_s + more_s > most_s:
        detail = f"waiting jobs may take {waiting_s:g} s and this one {more_s:g} s more, but the limit is {most_s:g} s"
        detail += "; try again later, or with a shorter time limit"
        raise ProblemError(429, "queue-full", "Too much work is waiting", detail, limit=most_s)


def find_job(session: Session, job_id: str, *, lock: bool = False) -> JobRow | None:
    """Look up a job by its id, which is unique across tenants."""
    query = select(JobRow).where(JobRow.id == job_id)
    return session.scalar(query.with_for_update() if lock else query)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a job, until another worker claims it with a higher fence."""

    job_id: str
    tenant: str
    kind: str
    fence: int
    trace: Document | None = None


@dataclass(frozen=True, slots=True)
class ClaimRules:
    """Rules for claiming jobs.

    Args:
        fairness: shares of tenants.
        max_attempts: limit of attempts of resumable jobs.
        resumable: whether an interrupted job of a kind may run again.
        has_outcome: whether an earlier attempt at a job has finished, so that no further one is made.
    """

    fairness: FairQueue
    max_attempts: int
    resumable: Callable[[str], bool]
    has_outcome: Callable[[str], bool]


def claim(session: Session, lane: str, worker: str, rules: ClaimRules) -> Lease | None:
    """Claim a lane's next job for a worker and begin an attempt; None if no job waits.

    Jobs without attempts left are failed on the way.
    """
    while (row := next_job(session, lane, rules.fairness)) is not None:
        row.fence += 1
        is_new = not rules.has_outcome(row.id)
        most = rules.max_attempts if rules.resumable(row.kind) else 1
        if is_new and row.attempts >= most:
            reason = row.message.removeprefix(_REQUEUED_PREFIX) or "interrupted"
            detail = f"{reason}; started {row.attempts} of {most} times" if most > 1 else reason
            failure = problem(500, detail, name="interrupted", title="The job was interrupted")
            finish(session, row, "failed", failure=failure)
            session.flush()
            continue
        add_to_finish_tag(session, row, rules.fairness)
        row.worker, row.state, row.started_at, row.attempts = worker, "running", now(), row.attempts + is_new
        row.progress, row.message, row.figures = None, "started", {}
        row.revision += 1
        return Lease(row.id, row.tenant, row.kind, row.fence, row.trace if tracing.is_on() else None)
    return None


def require_job(session: Session, lease: Lease) -> JobRow:
    """Return the row of a job that is or was ours; raise ``Interrupted`` if it was deleted."""
    if (row := find_job(session, lease.job_id)) is None:
        raise Interrupted(f"job {lease.job_id} is no longer stored")
    return row


def lock_held_job(session: Session, lease: Lease) -> JobRow:
    """Lock and return the row of a job that is still ours; raise ``Interrupted`` otherwise."""
    row = find_job(session, lease.job_id, lock=True)
    if row is None or row.fence != lease.fence:
        raise Interrupted(f"job {lease.job_id} was taken by another worker")
    return row


def store_trace(session: Session, lease: Lease) -> None:
    """Store the trace context of the attempt that begins."""
    lock_held_job(session, lease).trace = tracing.with_attempt_context(lease.trace)


def count_restart(session: Session, lease: Lease, reason: str, max_attempts: int) -> bool:
    """Count another attempt at a running job; False if none is left or cancellation was requested."""
    row = lock_held_job(session, lease)
    if row.cancel_requested or row.attempts >= max_attempts:
        return False
    row.attempts += 1
    row.progress, row.message, row.figures = None, f"started again: {reason}", {}
    row.revision += 1
    return True


def revoke_leases(session: Session, orphaned: ColumnElement[bool]) -> None:
    """Increment the fences of dead workers' jobs, so that nobody reports on or stores them.

    The jobs still count as running: what is left of their processes must be killed before ``requeue``.
    """
    for row in session.scalars(select(JobRow).where(_IS_CLAIMED, orphaned).order_by(JobRow.id).with_for_update()):
        row.worker, row.fence = None, row.fence + 1


def requeue(session: Session, orphaned: ColumnElement[bool], reason: str, *, begun: bool = True) -> None:
    """Requeue jobs that nobody works on, with new fences; cancel them if that was requested.

    Args:
        session: a writing session.
        orphaned: condition that selects the jobs.
        reason: text for their ``message``.
        begun: whether the attempt had begun; if not, it is not counted.
    """
    for row in session.scalars(select(JobRow).where(_IS_CLAIMED, orphaned).order_by(JobRow.id).with_for_update()):
        row.worker, row.fence = None, row.fence + 1
        if row.cancel_requested:
            finish(session, row, "cancelled")
        elif row.state == "running":
            correct_finish_tag(session, row)
            row.attempts -= not begun
            row.state, row.started_at, row.progress, row.message = "queued", None, None, f"{_REQUEUED_PREFIX}{reason}"
            row.revision += 1


def report(session: Session, lease: Lease, progress: float | None, message: str, figures: Document) -> None:
    """Record the progress of a running job."""
    row = lock_held_job(session, lease)
    row.progress, row.message, row.figures = progress, message, figures
    row.revision += 1


def request_cancel(session: Session, job_id: str, check: Callable[[JobRow], None] | None = None) -> JobRow | None:
    """Cancel a queued job, or request the end of a running one; ``check`` may refuse by raising."""
    row = find_job(session, job_id, lock=True)
    if row is not None and check is not None:
        check(row)
    if row is None or row.state == "cancelled" or (row.state == "running" and row.cancel_requested):
        return row
    if row.state in FINAL_STATES:
        raise conflict(f"job {job_id!r} has already {row.state}")
    row.cancel_requested = True
    row.revision += 1
    if row.state == "queued":
        finish(session, row, "cancelled")
    return row


def finish(
    session: Session, row: JobRow, state: str, *, result: Document | None = None, failure: Document | None = None
) -> None:
    """Move a row to a final state."""
    if row.state == "running":
        correct_finish_tag(session, row)
    row.state, row.finished_at, row.message = state, now(), state
    row.result = result
    row.problem = {**failure, "instance": f"/v1/jobs/{row.id}"} if failure else None
    if state == "succeeded":
        row.progress = 1.0
    row.revision += 1
