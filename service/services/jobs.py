"""Jobs: submission under a call's idempotency key, look-up, cancellation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from autosbp.service.auth.authentication import check_scope
from autosbp.service.db import Database
from autosbp.service.jobs import _job_rows
from autosbp.service.jobs._job_rows import QueueLimits
from autosbp.service.models import DEFAULT_EXPECTED_S, JobRow
from autosbp.service.problem_details import not_found
from autosbp.service.request_state import AppState
from autosbp.service.schemas._base import Document
from autosbp.service.services._fast_reads import read_page, require_row
from autosbp.service.services._list_page import ListPage
from autosbp.service.services._queries import Paged, find, new_id
from autosbp.service.settings import Settings

SCOPE_OF: Mapping[str, str] = {
    "capture": "search",
    "search": "search",
    "why": "search",
    "what-if": "search",
    "calibrate": "calibrate",
    "trial": "trial",
    "tune": "trial",
}
"""Scope that creating, and so cancelling, a job of a kind needs."""


def find_retried(state: AppState, session: Session) -> JobRow | None:
    """The job that this call has already created, if it is a retry under an idempotency key."""
    return None if state.call.key is None else find(session, JobRow, state.new_id("job"))


def submit(
    state: AppState,
    session: Session,
    kind: str,
    payload: Document,
    resource: str | None = None,
    expected_s: float = DEFAULT_EXPECTED_S,
) -> JobRow:
    """Queue a job for the call; call ``find_retried`` first."""
    return state.runner.submit(session, kind, payload, resource, state.new_id("job"), expected_s)


def submit_following(
    settings: Settings, session: Session, kind: str, payload: Document, resource: str, expected_s: float
) -> JobRow:
    """Queue a job that follows a planning job, in the transaction that stores that job's result.

    Raises ``ProblemError`` 429 if the queue is full.
    """
    row = JobRow(id=new_id("job"), kind=kind, payload=payload, resource=resource, expected_s=expected_s)
    return _job_rows.add(session, row, queue_limits(settings))


def queue_limits(settings: Settings) -> QueueLimits:
    """Limits of waiting jobs."""
    return QueueLimits(
        *(settings.max_queued_jobs, settings.max_queued_jobs_of_tenant),
        *(settings.max_queued_s, settings.max_queued_s_of_tenant),
    )


def attempt_number(settings: Settings, job: JobRow) -> int:
    """Number of the measuring attempt; always 1 with a launcher, whose ranks survive interruptions under their key."""
    return job.attempts if settings.launching is None else 1


def get(state: AppState, job_id: str) -> JobRow:
    """Return a job, or raise 404."""
    return require_row(state.database, JobRow, job_id, "job")


def cancel(state: AppState, job_id: str, check: Callable[[JobRow], None]) -> JobRow:
    """Request the end of a job; ``check`` may refuse by raising."""
    check_scope(state.call.caller, (SCOPE_OF.get(get(state, job_id).kind, "admin"),))
    row = state.runner.cancel(job_id, check)
    if row is None:
        raise not_found("job", job_id)
    return row


def listing(state: AppState, window: ListPage, /, **equal: object) -> Paged[JobRow]:
    """Return a page of jobs."""
    return read_page(state.database, JobRow, window, **equal)


def counts(database: Database) -> dict[tuple[str, str], int]:
    """Number of jobs by kind and state, of the database's tenant or of all tenants."""
    with database.read() as session:
        found = session.execute(select(JobRow.kind, JobRow.state, func.count()).group_by(JobRow.kind, JobRow.state))
        return {(kind, state): count for kind, state, count in found}
