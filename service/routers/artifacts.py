"""/v1/artifacts"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Annotated

from fastapi import Header, Response
from fastapi.responses import StreamingResponse

from service.edge.conditions import etag, is_known, tag
from service.edge.route import slow
from service.objects import CHUNK_BYTES
from service.routers._base import listed, paged, router, tagged
from service.schemas._base import Name, Page, PathId, QueryId, WindowDep
from service.schemas.artifacts import Artifact
from service.services import artifacts
from service.state import StateDep

routes = router("artifacts")
_LINKS = {"artifact": "get /v1/artifacts/{artifact_id}", "content": "get /v1/artifacts/{artifact_id}/content"}


class Content(StreamingResponse):
    """Bytes, which no browser shows."""

    media_type = "application/octet-stream"


@routes.get("", summary="List artifacts", response_model=Page[Artifact], responses=listed("artifact_id", **_LINKS))
def listing(state: StateDep, window: WindowDep, job_id: QueryId = None, name: Name = None) -> Response:
    """Newest first: logs and results that trials and calibrations have left, those that failed or were cancelled, too; of
    one job or name, if asked."""
    rows, following = artifacts.listing(state, window, job_id=job_id, name=name)
    return paged(Artifact, rows, following)


@routes.get("/{artifact_id}", summary="One artifact", responses=tagged(404))
def get(state: StateDep, response: Response, artifact_id: PathId) -> Artifact:
    """Its job, name, size and checksum."""
    row = artifacts.get(state, artifact_id)
    tag(response, row.sha256)
    return Artifact.model_validate(row)


@routes.get("/{artifact_id}/content", summary="What an artifact holds", response_class=Content, responses=tagged(404))
@slow
def content(
    state: StateDep,
    artifact_id: PathId,
    if_none_match: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> Response:
    """The file as it was when its job ended. 404 once it is no longer kept."""
    row = artifacts.get(state, artifact_id)
    current = etag(row.sha256)
    if is_known(if_none_match, current):
        return Response(headers={"etag": current})
    named = {"content-length": str(row.num_bytes), "content-disposition": f'attachment; filename="{row.name}"'}
    return Content(_read(artifacts.opened(state, row)), headers={"etag": current, **named})


def _read(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
