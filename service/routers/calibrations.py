"""/v1/calibrations"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Body, Response

from service.edge.conditions import tag
from service.edge.route import slow
from service.models import JobRow
from service.routers._base import (
    IDEMPOTENT,
    JsonBody,
    accepted,
    listed,
    made,
    paged,
    posted,
    queued,
    router,
    stored,
    tagged,
)
from service.schemas._base import Page, PathId, QueryId, WindowDep
from service.schemas.calibrations import EXAMPLES, Calibration, CalibrationDetail
from service.schemas.documents import any_of
from service.schemas.jobs import Job
from service.services import calibrations
from service.state import StateDep

routes = router("calibrations", "calibrate")
_ONE = "get /v1/calibrations/{calibration_id}"


@routes.post(
    "",
    summary="Measure a cluster, or store a calibration document",
    status_code=201,
    response_model=Calibration | Job,
    responses={**accepted(), **made(Calibration, "calibration_id", calibration=_ONE), **posted()},
    openapi_extra={**IDEMPOTENT, **any_of("CalibrationRequest", "CalibrationDocument")},
)
def create(
    state: StateDep, response: Response, body: Annotated[JsonBody, Body(openapi_examples=EXAMPLES)]
) -> Calibration | Job:
    """A request to measure answers 202 with a job; a document answers 201 and stores its cluster too."""
    outcome = calibrations.create(state, body)
    if isinstance(outcome, JobRow):
        return queued(response, outcome)
    row, is_new = outcome
    stored(response, f"/v1/calibrations/{row.id}", is_new, row.id, row.newest_id)
    return Calibration.model_validate(row)


@routes.get(
    "",
    summary="List calibrations",
    response_model=Page[Calibration],
    responses=listed("calibration_id", calibration=_ONE),
)
def listing(
    state: StateDep,
    window: WindowDep,
    cluster_id: QueryId = None,
    root_id: QueryId = None,
    backend: Literal["gloo", "nccl"] | None = None,
    complete: bool | None = None,
) -> Response:
    """Newest first; of one cluster, the versions of one family, of one backend, or those that are complete, if asked."""
    rows, following = calibrations.listing(
        state, window, cluster_id=cluster_id, root_id=root_id, backend=backend, complete=complete
    )
    return paged(Calibration, rows, following)


@routes.get("/{calibration_id}", summary="One calibration", responses=tagged(404))
@slow
def get(state: StateDep, response: Response, calibration_id: PathId) -> CalibrationDetail:
    """The calibration with all its points and fits."""
    row = calibrations.get(state, calibration_id)
    tag(response, row.id, row.newest_id)
    return CalibrationDetail.model_validate(row)
