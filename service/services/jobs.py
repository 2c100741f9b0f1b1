"""Jobs: look-ups, cancelling, and the stream of a job's changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from service.jobs._base import FINAL
from service.models import JobRow
from service.problems import not_found
from service.services._store import page
from service.state import State

_POLL_S = 0.2
_POLLS_PER_HEARTBEAT = 75


def get(state: State, job_id: str) -> JobRow:
    """One job, or 404."""
    row = state.runner.get(job_id)
    if row is None:
        raise not_found("job", job_id)
    return row


def cancel(state: State, job_id: str) -> JobRow:
    """Request the end of a job."""
    row = state.runner.cancel(job_id)
    if row is None:
        raise not_found("job", job_id)
    return row


def listing(
    state: State, job_state: str | None, kind: str | None, limit: int, cursor: str | None
) -> tuple[Sequence[JobRow], str | None]:
    """A page of jobs."""
    query = select(JobRow)
    if job_state is not None:
        query = query.where(JobRow.state == job_state)
    if kind is not None:
        query = query.where(JobRow.kind == kind)
    with state.database.read() as session:
        return page(session, query, JobRow, limit, cursor)


async def changes(state: State, job_id: str, revision: int) -> AsyncIterator[JobRow | None]:
    """Every observed change after ``revision`` until the job or the service ends; None now and then, as a heartbeat."""
    polls = 0
    while not state.closing.is_set():
        row = await run_in_threadpool(state.runner.newer, job_id, revision)
        if row is not None:
            yield row
            revision = row.revision
            if row.state in FINAL:
                return
        elif polls % _POLLS_PER_HEARTBEAT == 0:
            yield None
        polls += 1
        await asyncio.sleep(_POLL_S)
