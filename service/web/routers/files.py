"""/files: what trials and calibrations have left, to be saved."""

from __future__ import annotations

from fastapi import Response

from service.edge.route import slow
from service.routers import artifacts
from service.schemas._base import PathId
from service.state import StateDep
from service.web.route import pages

routes = pages()


@routes.get("/files/{artifact_id}")
@slow
def file(state: StateDep, artifact_id: PathId) -> Response:
    """As the interface gives it, to whoever has signed in."""
    return artifacts.content(state, artifact_id)
