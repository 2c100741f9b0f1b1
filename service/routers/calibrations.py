"""/v1/calibrations"""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Response

from service.models import JobRow
from service.routers._base import JsonBody, accepted, problems, queued, router, stored
from service.schemas._base import Cursor, Limit, Page, PathId, QueryId
from service.schemas.calibrations import EXAMPLES, Calibration, CalibrationDetail
from service.schemas.jobs import Job
from service.services import calibrations
from service.state import StateDep

routes = router("calibrations")


@routes.post(
    "",
    summary="Measure a cluster, or store a calibration document",
    status_code=201,
    response_model=Calibration | Job,
    responses={
        **accepted(),
        200: {"model": Calibration, "description": "It was already stored."},
        **problems(413, 429),
    },
)
def create(
    state: StateDep, response: Response, body: Annotated[JsonBody, Body(openapi_examples=EXAMPLES)]
) -> Calibration | Job:
    """A request to measure answers 202 with a job; a document answers 201 and stores its cluster too."""
    outcome = calibrations.create(state, body)
    if isinstance(outcome, JobRow):
        return queued(response, outcome)
    stored(response, f"/v1/calibrations/{outcome[0].id}", outcome[1])
    return Calibration.model_validate(outcome[0])


@routes.get("", summary="List calibrations")
def listing(
    state: StateDep,
    cluster_id: QueryId = None,
    root_id: QueryId = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[Calibration]:
    """Newest first; of one cluster, or the versions of one family, if asked."""
    rows, following = calibrations.listing(state, cluster_id, root_id, limit, cursor)
    return Page(items=[Calibration.model_validate(row) for row in rows], next_cursor=following)


@routes.get("/{calibration_id}", summary="One calibration", responses=problems(404))
def get(state: StateDep, calibration_id: PathId) -> CalibrationDetail:
    """The calibration with all its points and fits."""
    return CalibrationDetail.model_validate(calibrations.get(state, calibration_id))
