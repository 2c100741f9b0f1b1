"""What the routers share: strict routes, the problem responses of the documentation, the answer to queued work."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.convertors import StringConvertor, register_url_convertor

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
_TEXT = {"type": "string"}
_ETAG = {"ETag": {"description": "Which version of the resource this is.", "required": True, "schema": _TEXT}}
_RETRY_AFTER = {
    "Retry-After": {"description": "Seconds.", "required": True, "schema": {"type": "integer", "minimum": 1}}
}
_HEADERS: dict[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": {"description": "A bearer key is needed.", "required": True, "schema": _TEXT}},
    **dict.fromkeys((429, 503, 507), _RETRY_AFTER),
}
"""Those that every answer with this status has."""
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
JsonBody = Document


class _Name(StringConvertor):
    """Part of a path without a colon: ``/v1/jobs/ID:cancel`` is no job."""

    regex = "[^/:]+"


register_url_convertor("name", _Name())
Responses = dict[int | str, dict[str, Any]]


def router(name: str, *write: str, read: str = "read") -> APIRouter:
    """The router of one resource under ``/v1``: GET needs the scope ``read``, all else one of ``write``."""
    route_class = guarded(GET=(read,), POST=write, DELETE=write)
    return APIRouter(prefix=f"/v1/{name}", tags=[name], route_class=route_class, responses=problems(*_ALWAYS))


def problems(*statuses: int) -> Responses:
    """Documentation of the problem answers with these statuses."""
    content = {MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{Problem.__name__}"}}}
    found: Responses = {status: {"description": _MEANINGS[status], "content": content} for status in statuses}
    for status in found.keys() & _HEADERS.keys():
        found[status]["headers"] = _HEADERS[status]  # type: ignore[index]
    return found


def tagged(*statuses: int) -> Responses:
    """Documentation of a GET whose answer has an ETag, so that it can be asked for only if it has changed; and of the problem
    answers with these statuses."""
    known = {"description": "The client has this version (If-None-Match).", "headers": _ETAG}
    return {200: {"headers": _ETAG}, 304: known, **problems(*statuses)}


def located(what: str, *, tagged: bool = True) -> dict[str, Any]:
    """Documentation of the headers of an answer that says where something is."""
    where = {
        "Location": {"description": what, "required": True, "schema": {"type": "string", "format": "uri-reference"}}
    }
    return {"headers": {**where, **(_ETAG if tagged else {})}}


def following(*names: str, place: str = "id", **operations: str) -> dict[str, Any]:
    """Documentation of what the id at ``place`` in an answer is for: the parameters ``names`` of these operations, such as
    ``get /v1/jobs/{job_id}``."""
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
_OF_JOB = following("job_id", **JOB_LINKS)


def made(kind: type[BaseModel], name: str, **operations: str) -> Responses:
    """Documentation of 201 and 200 for a resource that is stored, or was; ``following`` says what its id is for."""
    more = {**located("The resource."), **following(name, **operations)}
    return {201: more, 200: {"model": kind, "description": "It was already stored.", **more}}


def listed(*names: str, **operations: str) -> Responses:
    """Documentation of a list: the first id in it is for the parameters ``names`` of these operations, as others are."""
    return {200: following(*names, place="items/0/id", **operations)}


def posted(*more: int) -> Responses:
    """Documentation of the problem answers of every POST."""
    return problems(*_OF_POSTS, *more)


def accepted() -> Responses:
    """Documentation of the answer to work that was queued."""
    description = "Queued; the job's result will name what it stored."
    return {202: {"model": Job, "description": description, **located("The job."), **_OF_JOB}}


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
    description = "An equal request was answered before: the job that did, ended."
    return {200: {"model": Job, "description": description, **located("The job."), **_OF_JOB}}


def stored(response: Response, path: str, is_new: bool, *version: object) -> None:
    """201 or 200, the address, and the ETag."""
    response.status_code = 201 if is_new else 200
    response.headers["location"] = path
    tag(response, *version)
