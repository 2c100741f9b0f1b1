"""What the routers share: strict routes, the problem responses of the documentation, the answer to queued work."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from fastapi import APIRouter, Response
from pydantic_core import to_json

from service.edge.conditions import tag
from service.edge.route import guarded
from service.models import Base, JobRow
from service.problems import MEDIA_TYPE
from service.schemas._base import Document, Item, Page, Problem
from service.schemas.jobs import Job

_MEANINGS = {
    401: "No valid API key came with the request.",
    403: "The key has not the scope that this needs.",
    404: "There is no such resource.",
    409: "The resource is in use or in another state, or the first request with this Idempotency-Key still runs.",
    412: "The resource is not as If-Match says.",
    413: "The body is larger than the service accepts.",
    415: "The body is not JSON.",
    422: "A value is not accepted; field, value and limit say which.",
    429: "Too many requests, or too many waiting jobs; Retry-After says when to try again.",
    500: "The service failed.",
    503: "The service cannot work now; Retry-After says when to try again.",
    507: "The storage is full.",
}
_ALWAYS = (401, 403, 422, 429, 500, 503)
_OF_POSTS = (409, 413, 415, 507)
IDEMPOTENT: dict[str, Any] = {
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "Any text of the client's. The same request with the same key is done once, and answered again "
            "with what is stored.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
        }
    ]
}
"""What the documentation of every POST says besides."""
READ_ONLY = ("read",)
JsonBody = Document
Responses = dict[int | str, dict[str, Any]]


def router(name: str, *write: str, read: str = "read") -> APIRouter:
    """The router of one resource under ``/v1``: GET needs the scope ``read``, all else one of ``write``."""
    route_class = guarded(GET=(read,), POST=write, DELETE=write)
    return APIRouter(prefix=f"/v1/{name}", tags=[name], route_class=route_class, responses=problems(*_ALWAYS))


def problems(*statuses: int) -> Responses:
    """Documentation of the problem answers with these statuses."""
    schema = {"$ref": f"#/components/schemas/{Problem.__name__}"}
    return {
        status: {"description": _MEANINGS[status], "content": {MEDIA_TYPE: {"schema": schema}}} for status in statuses
    }


def posted(*more: int) -> Responses:
    """Documentation of the problem answers of every POST."""
    return problems(*_OF_POSTS, *more)


def accepted() -> Responses:
    """Documentation of the answer to work that was queued."""
    where = {"Location": {"description": "The job.", "schema": {"type": "string"}}}
    return {202: {"model": Job, "description": "Queued; the job's result will name what it stored.", "headers": where}}


def queued(response: Response, job: JobRow) -> Job:
    """202 with the job and its address."""
    response.status_code = 202
    response.headers["location"] = f"/v1/jobs/{job.id}"
    tag(response, job.id, job.revision)
    return Job.model_validate(job)


def answered(response: Response, job: JobRow) -> Job:
    """200 with a job that has ended, as an equal request found it."""
    found = queued(response, job)
    response.status_code = 200 if job.finished_at is not None else 202
    return found


def paged(kind: type[Item], rows: Sequence[object], following: str | None) -> Response:
    """A page of rows. It is written here, because the framework would write each item twice; and of pictures, whose columns
    are what the schema names, without the schema."""
    if rows and not isinstance(rows[0], Base):
        names = tuple(kind.model_fields)
        read = attrgetter(*names)
        items = [dict(zip(names, read(row), strict=True)) for row in rows]
        return Response(to_json({"items": items, "next_cursor": following}), media_type="application/json")
    page = Page[kind].model_validate(  # type: ignore[valid-type]
        {"items": rows, "next_cursor": following}, from_attributes=True
    )
    return Response(page.model_dump_json(), media_type="application/json")


def reused() -> Responses:
    """Documentation of the answer to a request that equals an earlier one."""
    return {200: {"model": Job, "description": "An equal request was answered before: the job that did, ended."}}


def stored(response: Response, path: str, is_new: bool, *version: object) -> None:
    """201 or 200, the address, and the ETag."""
    response.status_code = 201 if is_new else 200
    response.headers["location"] = path
    tag(response, *version)
