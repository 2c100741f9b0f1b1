"""/v1/jobs"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import Header, Query
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from service.routers._base import Responses, problems, router
from service.schemas._base import Cursor, Limit, Page, PathId
from service.schemas.jobs import Job, JobState
from service.services import jobs
from service.state import State, StateDep

routes = router("jobs")
Kind = Literal["capture", "calibrate", "search", "trial"]
_EVENTS: Responses = {
    200: {"description": "Server-sent events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


@routes.get("", summary="List jobs")
def listing(
    state: StateDep,
    job_state: Annotated[JobState | None, Query(alias="state")] = None,
    kind: Kind | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[Job]:
    """Newest first; of one state or kind, if asked."""
    rows, following = jobs.listing(state, job_state, kind, limit, cursor)
    return Page(items=[Job.model_validate(row) for row in rows], next_cursor=following)


@routes.get("/{job_id}", summary="One job", responses=problems(404))
def get(state: StateDep, job_id: PathId) -> Job:
    """State, progress, and in the end the result or the problem."""
    return Job.model_validate(jobs.get(state, job_id))


@routes.post("/{job_id}:cancel", summary="Cancel a job", responses=problems(404, 409))
def cancel(state: StateDep, job_id: PathId) -> Job:
    """A queued job ends at once, a running one soon. Repeating it changes nothing; 409 if the job has already ended."""
    return Job.model_validate(jobs.cancel(state, job_id))


@routes.get(
    "/{job_id}/events",
    summary="Follow a job",
    response_class=StreamingResponse,
    responses={**_EVENTS, **problems(404)},
)
async def events(state: StateDep, job_id: PathId, last_event_id: Annotated[int, Header(ge=0)] = 0) -> StreamingResponse:
    """Server-sent events: ``progress`` with the job at each change, ``end`` with the job at last. The event id is the
    job's revision, so a client that reconnects with Last-Event-ID misses nothing newer."""
    await run_in_threadpool(jobs.get, state, job_id)
    stream = _encode(state, job_id, last_event_id)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})


async def _encode(state: State, job_id: str, revision: int) -> AsyncIterator[str]:
    async for row in jobs.changes(state, job_id, revision):
        if row is None:
            yield ": still here\n\n"
            continue
        job = Job.model_validate(row)
        name = "end" if job.finished_at is not None else "progress"
        yield f"id: {job.revision}\nevent: {name}\ndata: {job.model_dump_json()}\n\n"
