"""Routes of /v1/calibrations: store, measure, list, read and delete calibrations."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Body, Response

from autosbp.service.http.api_route import in_thread, max_body
from autosbp.service.http.etags import IfMatch, check_if_match, etag, set_etag
from autosbp.service.models import CalibrationRow
from autosbp.service.request_state import StateDep
from autosbp.service.routers._base import (
    IDEMPOTENT,
    Cascade,
    JsonBody,
    documented_creation,
    documented_delete_problems,
    documented_etag,
    documented_job,
    documented_list,
    documented_post_problems,
    respond_with_page,
    respond_with_queued_job,
    respond_with_stored,
    router,
)
from autosbp.service.schemas._base import Page, PathId, QueryId, WindowDep
from autosbp.service.schemas.calibrations import (
    EXAMPLES,
    MEASURE_EXAMPLES,
    Calibration,
    CalibrationDetail,
    CalibrationRequest,
)
from autosbp.service.schemas.documents import any_of
from autosbp.service.schemas.jobs import Job
from autosbp.service.services import calibrations, deletion

routes = router("calibrations", "calibrate")
_ONE = "get /v1/calibrations/{calibration_id}"


@routes.post(
    "",
    summary="Store a calibration document",
    status_code=201,
    responses={**documented_creation(Calibration, "calibration_id", calibration=_ONE), **documented_post_problems()},
    openapi_extra={**IDEMPOTENT, **any_of("CalibrationDocument")},
)
@max_body(None)
def create_calibration(
    state: StateDep, response: Response, body: Annotated[JsonBody, Body(openapi_examples=EXAMPLES)]
) -> Calibration:
    """Stores a calibration and its cluster. Answers 201, or 200 if the calibration is already stored."""
    row, is_new = calibrations.create(state, body)
    respond_with_stored(response, f"/v1/calibrations/{row.id}", is_new, row.id, row.newest_id)
    return Calibration.model_validate(row)


@routes.post(
    ":measure",
    summary="Measure a cluster",
    status_code=202,
    responses={**documented_job(), **documented_post_problems()},
    openapi_extra=IDEMPOTENT,
)
def measure_cluster(
    state: StateDep,
    response: Response,
    request: Annotated[CalibrationRequest, Body(openapi_examples=MEASURE_EXAMPLES)],
) -> Job:
    """Queues the measurement. Answers 202 with the job, whose result has the calibration's id."""
    return respond_with_queued_job(response, calibrations.measure(state, request))


@routes.get(
    "",
    summary="List calibrations",
    response_model=Page[Calibration],
    responses=documented_list("calibration_id", calibration=_ONE),
)
def list_calibrations(
    state: StateDep,
    window: WindowDep,
    cluster_id: QueryId = None,
    root_id: QueryId = None,
    backend: Literal["gloo", "nccl"] | None = None,
    complete: bool | None = None,
) -> Response:
    """Lists calibrations, newest first.

    Optionally of one cluster, family (``root_id``) or backend, or only complete ones.
    """
    rows, following = calibrations.listing(
        state, window, cluster_id=cluster_id, root_id=root_id, backend=backend, complete=complete
    )
    return respond_with_page(Calibration, rows, following)


@routes.get("/{calibration_id}", summary="One calibration", responses=documented_etag(404))
@in_thread
def get_calibration(state: StateDep, response: Response, calibration_id: PathId) -> CalibrationDetail:
    """Returns the calibration with all its points and fits."""
    row = calibrations.get(state, calibration_id)
    set_etag(response, row.id, row.newest_id)
    return CalibrationDetail.model_validate(row)


@routes.delete(
    "/{calibration_id}", summary="Delete a calibration", status_code=204, responses=documented_delete_problems()
)
def delete_calibration(
    state: StateDep, calibration_id: PathId, cascade: Cascade = False, if_match: IfMatch = None
) -> None:
    """Deletes the calibration with the job that measured it.

    Answers 409 while its versions, artifacts, searches or strategies refer to it; ``cascade`` deletes them as well.
    """
    deletion.remove(
        state,
        CalibrationRow,
        calibration_id,
        "calibration",
        lambda row: check_if_match(if_match, etag(row.id, row.newest_id)),
        cascade=cascade,
    )
