"""/files: downloads of artifacts of trials and calibrations."""

from __future__ import annotations

from fastapi import Response

from autosbp.service.http.api_route import in_thread
from autosbp.service.request_state import StateDep
from autosbp.service.routers import artifacts
from autosbp.service.schemas._base import PathId
from autosbp.service.web.page_route import page_router

routes = page_router()


@routes.get("/files/{artifact_id}")
@in_thread
def file(state: StateDep, artifact_id: PathId) -> Response:
    """Returns the artifact's content as the API does, for signed-in callers."""
    return artifacts.get_artifact_content(state, artifact_id)
