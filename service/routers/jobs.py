"""Routes of /v1/jobs: list, read, follow, cancel and delete jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Header, Query, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from autosbp.service.auth.authentication import too_many
from autosbp.service.connection_limits import clamp_to_descriptors
from autosbp.service.http.etags import IfMatch, check_if_match, etag, set_etag
from autosbp.service.jobs._base import FINAL_STATES
from autosbp.service.jobs.change_feed import Follower
from autosbp.service.models import JobRow
from autosbp.service.request_state import AppState, StateDep
from autosbp.service.routers._base import (
    IDEMPOTENT,
    JOB_LINKS,
    Cascade,
    Responses,
    documented_delete_problems,
    documented_etag,
    documented_list,
    documented_post_problems,
    documented_problems,
    respond_with_page,
    router,
)
from autosbp.service.schemas._base import Page, PathId, WindowDep
from autosbp.service.schemas.jobs import Job, JobKind, JobState
from autosbp.service.services import deletion, jobs

routes = router("jobs", "search", "trial", "calibrate")
_EVENT = {
    "type": "object",
    "required": ["id", "event", "data"],
    "properties": {
        "id": {"description": "The job's revision.", "type": "string", "pattern": "^[0-9]+$"},
        "event": {"enum": ["progress", "end"]},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": f"#/components/schemas/{Job.__name__}"},
        },
    },
}
_STREAM = {"text/event-stream": {"schema": _EVENT}}
_EVENTS: Responses = {
    200: {"description": "Server-sent events that follow the schema.", "content": _STREAM},
    204: {"description": "The job has ended and the client has its last event; do not reconnect."},
}
_RETRY = "retry: 1000\n\n"
_EVENTS_TYPE = "text/event-stream"
_NO_CACHING_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


@routes.get("", summary="List jobs", response_model=Page[Job], responses=documented_list("job_id", **JOB_LINKS))
def list_jobs(
    state: StateDep,
    window: WindowDep,
    job_state: Annotated[JobState | None, Query(alias="state")] = None,
    kind: JobKind | None = None,
) -> Response:
    """Lists jobs, newest first, optionally of one state or kind."""
    rows, following = jobs.listing(state, window, state=job_state, kind=kind)
    return respond_with_page(Job, rows, following)


@routes.get("/{job_id:name}", summary="One job", responses=documented_etag(404))
def get_job(state: StateDep, response: Response, job_id: PathId) -> Job:
    """Returns state and progress, and once the job has ended its result or problem."""
    row = jobs.get(state, job_id)
    set_etag(response, row.id, row.revision)
    return Job.model_validate(row)


@routes.post(
    "/{job_id}:cancel",
    summary="Cancel a job",
    responses={200: documented_etag()[200], **documented_post_problems(404, 412)},
    openapi_extra=IDEMPOTENT,
)
def cancel_job(state: StateDep, response: Response, job_id: PathId, if_match: IfMatch = None) -> Job:
    """Cancels a job. A queued job ends at once, a running one soon.

    Repeating the call changes nothing; answers 409 if the job has succeeded or failed. Needs the scope that creates
    such a job.
    """
    row = jobs.cancel(state, job_id, lambda job: check_if_match(if_match, etag(job.id, job.revision)))
    set_etag(response, row.id, row.revision)
    return Job.model_validate(row)


@routes.get(
    "/{job_id}/events",
    summary="Follow a job",
    response_class=StreamingResponse,
    responses={**_EVENTS, **documented_problems(404)},
)
async def follow_job(state: StateDep, job_id: PathId, last_event_id: Annotated[int, Header(ge=0)] = 0) -> Response:
    """Streams the job as server-sent events: ``progress`` at each change, and a final ``end``.

    The event id is the job's revision, so a client that reconnects with Last-Event-ID misses nothing newer. A
    Last-Event-ID above the job's revision, as after a restore of the database, counts as 0. If the caller's key expires
    or is revoked, the stream closes without ``end``.
    """
    row = await state.database.run_read(jobs.get, state, job_id)
    if row.state in FINAL_STATES and row.revision == last_event_id:
        return Response(status_code=204)
    if row.state in FINAL_STATES:
        return Response(_RETRY + format_event(row), headers=_NO_CACHING_HEADERS, media_type=_EVENTS_TYPE)
    _check_streams(state)
    known = last_event_id if last_event_id <= row.revision else 0
    return _Stream(state, state.feed.follow(job_id, known, state.call.caller))


def _check_streams(state: AppState) -> None:
    """Raise 429 at the limit of event streams, in total or of the caller's tenant.

    Streams take at most three quarters of all connections.
    """
    settings = state.settings
    most = min(settings.max_streams, clamp_to_descriptors(settings.max_connections) * 3 // 4)
    of_tenant = settings.max_streams_of_tenant
    if state.feed.num_followers >= most:
        raise too_many(5, f"{most} event streams are open")
    if state.feed.num_followers_of(state.call.caller.tenant) >= of_tenant:
        raise too_many(5, f"{of_tenant} event streams of this tenant are open")


class _Stream(StreamingResponse):
    """A stream that unregisters its follower at its end, even if the client left before the first byte."""

    def __init__(self, state: AppState, follower: Follower) -> None:
        self._feed, self._follower = state.feed, follower
        super().__init__(_event_stream(state, follower), headers=_NO_CACHING_HEADERS, media_type=_EVENTS_TYPE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._feed.leave(self._follower)


async def _event_stream(state: AppState, follower: Follower) -> AsyncIterator[str]:
    yield _RETRY
    async for change in state.feed.changes(follower, state.closing):
        yield ": still here\n\n" if change is None else change.text


def format_event(row: JobRow) -> str:
    """Format a job as a server-sent event."""
    job = Job.model_validate(row)
    name = "end" if job.finished_at is not None else "progress"
    return f"id: {job.revision}\nevent: {name}\ndata: {job.model_dump_json()}\n\n"


@routes.delete("/{job_id:name}", summary="Delete a job", status_code=204, responses=documented_delete_problems())
def delete_job(state: StateDep, job_id: PathId, cascade: Cascade = False, if_match: IfMatch = None) -> None:
    """Deletes a job that has ended.

    Answers 409 while the job runs, and while its resource or artifacts exist; ``cascade`` deletes these as well. Needs
    the scope that creates such a job.
    """
    deletion.remove(
        state, JobRow, job_id, "job", lambda row: check_if_match(if_match, etag(row.id, row.revision)), cascade=cascade
    )
