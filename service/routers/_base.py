"""Common parts of the routers: authenticated routes, documented problem responses, answers to queued work."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.convertors import StringConvertor, register_url_convertor

from autosbp.service.http.api_route import make_route_class
from autosbp.service.http.etags import set_etag
from autosbp.service.models import Base, JobRow
from autosbp.service.problem_details import MEDIA_TYPE
from autosbp.service.schemas._base import Document, Item, Page, Problem
from autosbp.service.schemas.jobs import Job

_MEANINGS = {
    401: "The request has no valid API key.",
    403: "The API key lacks the required scope.",
    404: "The resource does not exist.",
    409: (
        "The resource is in use or in a conflicting state, or the first request with this Idempotency-Key is "
        "still in progress."
    ),
    412: "The resource does not match If-Match.",
    413: "The body exceeds the size limit.",
    415: "The body is not JSON.",
    422: "A value is invalid; see field, value and limit.",
    429: "Too many requests or waiting jobs; retry after Retry-After.",
    500: "The service failed.",
    503: "The service is unavailable; retry after Retry-After.",
    507: "Storage is full.",
}
_TEXT = {"type": "string"}
_ETAG = {"ETag": {"description": "Version of the resource.", "required": True, "schema": _TEXT}}
_RETRY_AFTER = {
    "Retry-After": {"description": "Seconds.", "required": True, "schema": {"type": "integer", "minimum": 1}}
}
_HEADERS: dict[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": {"description": "A bearer key is required.", "required": True, "schema": _TEXT}},
    **dict.fromkeys((429, 503, 507), _RETRY_AFTER),
}
"""Headers of every answer with this status."""
_ALWAYS = (401, 403, 422, 429, 500, 503)
_OF_POSTS = (409, 413, 415, 507)
IDEMPOTENT: dict[str, Any] = {
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "Key chosen by the client. Repeating a request with the same key returns the stored "
            "response instead of executing it again.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
        }
    ]
}
"""Additions to the documentation of every POST."""
JsonBody = Document
Cascade = Annotated[bool, Query(description="Also delete dependent resources, which a 409 lists.")]


class _Name(StringConvertor):
    """A path segment without a colon, so that ``/v1/jobs/ID:cancel`` does not match ``/v1/jobs/{job_id}``."""

    regex = "[^/:]+"


register_url_convertor("name", _Name())
Responses = dict[int | str, dict[str, Any]]


def router(name: str, *write: str, read: str = "read") -> APIRouter:
    """Router of one resource under ``/v1``: GET needs the scope ``read``, other methods one of ``write``."""
    route_class = make_route_class(GET=(read,), POST=write, DELETE=write)
    return APIRouter(
        prefix=f"/v1/{name}", tags=[name], route_class=route_class, responses=documented_problems(*_ALWAYS)
    )


def documented_problems(*statuses: int) -> Responses:
    """Document the problem responses with these statuses."""
    content = {MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{Problem.__name__}"}}}
    found: Responses = {status: {"description": _MEANINGS[status], "content": content} for status in statuses}
    for status in found.keys() & _HEADERS.keys():
        found[status]["headers"] = _HEADERS[status]  # type: ignore[index]
    return found


def documented_etag(*statuses: int) -> Responses:
    """Document a GET whose answer has an ETag and supports If-None-Match, with these problem responses."""
    known = {"description": "Not modified: the client has this version (If-None-Match).", "headers": _ETAG}
    return {200: {"headers": _ETAG}, 304: known, **documented_problems(*statuses)}


def documented_location(what: str, *, tagged: bool = True) -> dict[str, Any]:
    """Document an answer with a Location header; ``what`` describes the target."""
    where = {
        "Location": {"description": what, "required": True, "schema": {"type": "string", "format": "uri-reference"}}
    }
    return {"headers": {**where, **(_ETAG if tagged else {})}}


def documented_links(*names: str, place: str = "id", **operations: str) -> dict[str, Any]:
    """Document links from an answer's id to other operations.

    Args:
        *names: path parameters that take the id.
        place: JSON pointer of the id in the answer.
        **operations: operations by link name, such as ``get /v1/jobs/{job_id}``.
    """
    links = {}
    for link, operation in operations.items():
        method, path = operation.split()
        parameters = {name: f"$response.body#/{place}" for name in names if f"{{{name}}}" in path}
        links[link] = {"operationRef": f"#/paths/{path.replace('/', '~1')}/{method}", "parameters": parameters}
    return {"links": links}


JOB_LINKS = {
    "job": "get /v1/jobs/{job_id}",
    "events": "get /v1/jobs/{job_id}/events",
    "cancel": "post /v1/jobs/{job_id}:cancel",
}
_OF_JOB = documented_links("job_id", **JOB_LINKS)


def documented_creation(kind: type[BaseModel], name: str, **operations: str) -> Responses:
    """Document 201 and 200 for storing a resource; ``operations`` as in ``documented_links``."""
    more = {**documented_location("The resource."), **documented_links(name, **operations)}
    return {201: more, 200: {"model": kind, "description": "Already stored.", **more}}


def documented_delete_problems() -> Responses:
    """Document the problem responses of every DELETE of a resource."""
    return documented_problems(404, 409, 412)


def documented_list(*names: str, **operations: str) -> Responses:
    """Document a list; its first id links to these operations, as those of the other items would."""
    return {200: documented_links(*names, place="items/0/id", **operations)}


def documented_post_problems(*more: int) -> Responses:
    """Document the problem responses of every POST."""
    return documented_problems(*_OF_POSTS, *more)


def documented_job() -> Responses:
    """Document the answer to queued work."""
    description = "Queued; the job's result will have the ids of stored resources."
    return {202: {"model": Job, "description": description, **documented_location("The job."), **_OF_JOB}}


def respond_with_queued_job(response: Response, job: JobRow) -> Job:
    """Answer 202 with the job and its location."""
    response.status_code = 202
    response.headers["location"] = f"/v1/jobs/{job.id}"
    set_etag(response, job.id, job.revision)
    return Job.model_validate(job)


def respond_with_earlier_job(response: Response, job: JobRow) -> Job:
    """Answer with the job of an equal earlier request: 200 if it has ended, else 202."""
    found = respond_with_queued_job(response, job)
    response.status_code = 200 if job.finished_at is not None else 202
    return found


def respond_with_page(kind: type[Item], rows: Sequence[object], following: str | None) -> Response:
    """Answer with a page of rows.

    It is serialised here, because the framework would serialise each item twice. Rows that are not ORM objects have
    exactly the schema's columns and skip its validation.
    """
    if rows and not isinstance(rows[0], Base):
        names = tuple(kind.model_fields)
        read = attrgetter(*names)
        items = [dict(zip(names, read(row), strict=True)) for row in rows]
        return Response(to_json({"items": items, "next_cursor": following}), media_type="application/json")
    page = Page[kind].model_validate(  # type: ignore[valid-type]
        {"items": rows, "next_cursor": following}, from_attributes=True
    )
    return Response(page.model_dump_json(), media_type="application/json")


def documented_equal_request() -> Responses:
    """Document the answer to a request that equals an earlier one."""
    description = "An identical request was executed before; this is its finished job."
    return {200: {"model": Job, "description": description, **documented_location("The job."), **_OF_JOB}}


def respond_with_stored(response: Response, path: str, is_new: bool, *version: object) -> None:
    """Set status (201 or 200), location and ETag."""
    response.status_code = 201 if is_new else 200
    response.headers["location"] = path
    set_etag(response, *version)
