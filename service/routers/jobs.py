"""/v1/jobs"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import Header, Query, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from service.access.gate import too_many
from service.connections import allowed
from service.edge.conditions import IfMatch, etag, expect, tag
from service.jobs._base import FINAL
from service.jobs.feed import Follower
from service.models import JobRow
from service.routers._base import IDEMPOTENT, JOB_LINKS, Responses, listed, paged, posted, problems, router, tagged
from service.schemas._base import Page, PathId, WindowDep
from service.schemas.jobs import Job, JobState
from service.services import jobs
from service.state import State, StateDep

routes = router("jobs", "search", "trial", "calibrate")
Kind = Literal["capture", "calibrate", "search", "trial", "why", "what-if"]
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
    200: {"description": "Server-sent events, of which each is as the schema says.", "content": _STREAM},
    204: {"description": "The job has ended and the client has its last event: there is nothing to reconnect for."},
}
_RETRY = "retry: 1000\n\n"
_EVENTS_TYPE = "text/event-stream"
_UNKEPT = {"cache-control": "no-store", "x-accel-buffering": "no"}


@routes.get("", summary="List jobs", response_model=Page[Job], responses=listed("job_id", **JOB_LINKS))
def listing(
    state: StateDep,
    window: WindowDep,
    job_state: Annotated[JobState | None, Query(alias="state")] = None,
    kind: Kind | None = None,
) -> Response:
    """Newest first; of one state or kind, if asked."""
    rows, following = jobs.listing(state, window, state=job_state, kind=kind)
    return paged(Job, rows, following)


@routes.get("/{job_id:name}", summary="One job", responses=tagged(404))
def get(state: StateDep, response: Response, job_id: PathId) -> Job:
    """State, progress, and in the end the result or the problem."""
    row = jobs.get(state, job_id)
    tag(response, row.id, row.revision)
    return Job.model_validate(row)


@routes.post(
    "/{job_id}:cancel",
    summary="Cancel a job",
    responses={200: tagged()[200], **posted(404, 412)},
    openapi_extra=IDEMPOTENT,
)
def cancel(state: StateDep, response: Response, job_id: PathId, if_match: IfMatch = None) -> Job:
    """A queued job ends at once, a running one soon. Repeating it changes nothing; 409 if the job has already ended. It
    needs the scope that such a job is made with."""
    row = jobs.cancel(state, job_id, lambda job: expect(if_match, etag(job.id, job.revision)))
    tag(response, row.id, row.revision)
    return Job.model_validate(row)


@routes.get(
    "/{job_id}/events",
    summary="Follow a job",
    response_class=StreamingResponse,
    responses={**_EVENTS, **problems(404)},
)
async def events(state: StateDep, job_id: PathId, last_event_id: Annotated[int, Header(ge=0)] = 0) -> Response:
    """Server-sent events: ``progress`` with the job at each change, ``end`` with the job at last. The event id is the
    job's revision, so a client that reconnects with Last-Event-ID misses nothing newer; one that the job has not come to, as
    after a database was restored, counts as none. The stream ends without ``end`` when its key does."""
    row = await state.database.ask(jobs.get, state, job_id)
    if row.state in FINAL and row.revision == last_event_id:
        return Response(status_code=204)
    if row.state in FINAL:
        return Response(_RETRY + encode(row), headers=_UNKEPT, media_type=_EVENTS_TYPE)
    _check_streams(state)
    known = last_event_id if last_event_id <= row.revision else 0
    return _Stream(state, state.feed.follow(job_id, known, state.call.caller))


def _check_streams(state: State) -> None:
    """429 where as many streams are open as may be, of all or of the caller's tenant. They leave a quarter of the connections
    to all else."""
    settings = state.settings
    most = min(settings.max_streams, allowed(settings.max_connections) * 3 // 4)
    of_tenant = settings.max_streams_of_tenant
    if state.feed.num_followers >= most:
        raise too_many(5, f"{most} event streams are open")
    if state.feed.num_followers_of(state.call.caller.tenant) >= of_tenant:
        raise too_many(5, f"{of_tenant} event streams of this tenant are open")


class _Stream(StreamingResponse):
    """Its follower is left when it ends, even if its client was gone before the first word."""

    def __init__(self, state: State, follower: Follower) -> None:
        self._feed, self._follower = state.feed, follower
        super().__init__(_told(state, follower), headers=_UNKEPT, media_type=_EVENTS_TYPE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._feed.leave(self._follower)


async def _told(state: State, follower: Follower) -> AsyncIterator[str]:
    yield _RETRY
    async for change in state.feed.changes(follower, state.closing):
        yield ": still here\n\n" if change is None else change.text


def encode(row: JobRow) -> str:
    """A job as a server-sent event."""
    job = Job.model_validate(row)
    name = "end" if job.finished_at is not None else "progress"
    return f"id: {job.revision}\nevent: {name}\ndata: {job.model_dump_json()}\n\n"
