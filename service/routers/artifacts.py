"""Routes of /v1/artifacts: list, read, download and delete files of trials and calibrations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Annotated

from fastapi import Header, Response
from fastapi.responses import StreamingResponse

from autosbp.service.artifact_storage import CHUNK_BYTES
from autosbp.service.http.api_route import in_thread
from autosbp.service.http.etags import IfMatch, check_if_match, etag, matches_if_none_match, set_etag
from autosbp.service.models import ArtifactRow
from autosbp.service.request_state import StateDep
from autosbp.service.routers._base import (
    Cascade,
    documented_delete_problems,
    documented_etag,
    documented_list,
    respond_with_page,
    router,
)
from autosbp.service.schemas._base import Name, Page, PathId, QueryId, WindowDep
from autosbp.service.schemas.artifacts import Artifact
from autosbp.service.services import artifacts, deletion

routes = router("artifacts", "trial", "calibrate")
_LINKS = {"artifact": "get /v1/artifacts/{artifact_id}", "content": "get /v1/artifacts/{artifact_id}/content"}


class Content(StreamingResponse):
    """A download of bytes that browsers do not display."""

    media_type = "application/octet-stream"


@routes.get(
    "", summary="List artifacts", response_model=Page[Artifact], responses=documented_list("artifact_id", **_LINKS)
)
def list_artifacts(state: StateDep, window: WindowDep, job_id: QueryId = None, name: Name = None) -> Response:
    """Lists artifacts, newest first, optionally of one job or file name.

    These are logs and results of trials and calibrations, including failed and cancelled ones.
    """
    rows, following = artifacts.listing(state, window, job_id=job_id, name=name)
    return respond_with_page(Artifact, rows, following)


@routes.get("/{artifact_id}", summary="One artifact", responses=documented_etag(404))
def get_artifact(state: StateDep, response: Response, artifact_id: PathId) -> Artifact:
    """Returns job, name, size and checksum of the artifact."""
    row = artifacts.get(state, artifact_id)
    set_etag(response, row.sha256)
    return Artifact.model_validate(row)


@routes.get(
    "/{artifact_id}/content", summary="Contents of an artifact", response_class=Content, responses=documented_etag(404)
)
@in_thread
def get_artifact_content(
    state: StateDep,
    artifact_id: PathId,
    if_none_match: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> Response:
    """Returns the file as it was when its job ended; 404 if it is no longer kept."""
    row = artifacts.get(state, artifact_id)
    current = etag(row.sha256)
    if matches_if_none_match(if_none_match, current):
        return Response(headers={"etag": current})
    named = {"content-length": str(row.num_bytes), "content-disposition": f'attachment; filename="{row.name}"'}
    return Content(_read(artifacts.open_content(state, row)), headers={"etag": current, **named})


def _read(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


@routes.delete("/{artifact_id}", summary="Delete an artifact", status_code=204, responses=documented_delete_problems())
def delete_artifact(state: StateDep, artifact_id: PathId, cascade: Cascade = False, if_match: IfMatch = None) -> None:
    """Deletes the file and its record; needs the scope that creates such a job."""
    deletion.remove(
        state,
        ArtifactRow,
        artifact_id,
        "artifact",
        lambda row: check_if_match(if_match, etag(row.sha256)),
        cascade=cascade,
    )
