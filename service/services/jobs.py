"""Jobs: submitting under a call's idempotency key, look-ups, cancelling."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.access.gate import check_scope
from service.db import Database
from service.models import JobRow
from service.problems import not_found
from service.schemas._base import Document
from service.services._pictures import pictured, pictures
from service.services._store import Paged, find
from service.services._window import Window
from service.settings import Settings
from service.state import State

SCOPE_OF: Mapping[str, str] = {
    "capture": "search",
    "search": "search",
    "why": "search",
    "what-if": "search",
    "calibrate": "calibrate",
    "trial": "trial",
}
"""What a caller needs to make a job of a kind, and so to cancel one."""


def again(state: State, session: Session) -> JobRow | None:
    """The job that this very call has made already: the call has an idempotency key and its answer was lost."""
    return None if state.call.key is None else find(session, JobRow, state.new_id("job"))


def submit(state: State, session: Session, kind: str, payload: Document, resource: str | None = None) -> JobRow:
    """Queue a job of the call; ask ``again`` first."""
    return state.runner.submit(session, kind, payload, resource, state.new_id("job"))


def attempt(settings: Settings, job: JobRow) -> int:
    """Which attempt at measuring this is. Ranks that a launcher started outlive an interruption and are found by their key:
    it is still the first."""
    return job.attempts if settings.launching is None else 1


def get(state: State, job_id: str) -> JobRow:
    """One job, or 404."""
    return pictured(state.database, JobRow, job_id, "job")


def cancel(state: State, job_id: str, check: Callable[[JobRow], None]) -> JobRow:
    """Request the end of a job; ``check`` may refuse by raising."""
    check_scope(state.call.caller, (SCOPE_OF.get(get(state, job_id).kind, "admin"),))
    row = state.runner.cancel(job_id, check)
    if row is None:
        raise not_found("job", job_id)
    return row


def listing(state: State, window: Window, /, **equal: object) -> Paged[JobRow]:
    """A page of jobs."""
    return pictures(state.database, JobRow, window, **equal)


def counts(database: Database) -> dict[tuple[str, str], int]:
    """How many jobs of each kind and state there are, of all tenants or of the database's."""
    with database.read() as session:
        found = session.execute(select(JobRow.kind, JobRow.state, func.count()).group_by(JobRow.kind, JobRow.state))
        return {(kind, state): count for kind, state, count in found}
