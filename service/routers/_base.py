"""What the routers share: strict routes, the problem responses of the documentation, the answer to queued work."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from service.body import StrictRoute
from service.models import JobRow
from service.problems import MEDIA_TYPE
from service.schemas._base import Document, Problem
from service.schemas.jobs import Job

_MEANINGS = {
    404: "There is no such resource.",
    409: "The resource is in use or in another state.",
    413: "The body is larger than the service accepts.",
    422: "A value is not accepted; field, value and limit say which.",
    429: "Too many jobs are waiting.",
    500: "The service failed.",
    503: "The service cannot work now.",
}
JsonBody = Document
Responses = dict[int | str, dict[str, Any]]


def router(name: str) -> APIRouter:
    """The router of one resource under ``/v1``."""
    return APIRouter(prefix=f"/v1/{name}", tags=[name], route_class=StrictRoute, responses=problems(422, 500))


def problems(*statuses: int) -> Responses:
    """Documentation of the problem answers with these statuses."""
    schema = {"$ref": f"#/components/schemas/{Problem.__name__}"}
    return {
        status: {"description": _MEANINGS[status], "content": {MEDIA_TYPE: {"schema": schema}}} for status in statuses
    }


def accepted() -> Responses:
    """Documentation of the answer to work that was queued."""
    where = {"Location": {"description": "The job.", "schema": {"type": "string"}}}
    return {202: {"model": Job, "description": "Queued; the job's result will name what it stored.", "headers": where}}


def queued(response: Response, job: JobRow) -> Job:
    """202 with the job and its address."""
    response.status_code = 202
    response.headers["location"] = f"/v1/jobs/{job.id}"
    return Job.model_validate(job)


def stored(response: Response, path: str, is_new: bool) -> None:
    """201 or 200, and the address."""
    response.status_code = 201 if is_new else 200
    response.headers["location"] = path
