"""/clusters and /calibrations: clusters and their measurements."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse

from autosbp.errors import AutosbpError
from autosbp.service.http.api_route import in_thread
from autosbp.service.problem_details import ProblemError, problem_of
from autosbp.service.request_state import AppState, StateDep
from autosbp.service.schemas._base import PathId
from autosbp.service.schemas.calibrations import CalibrationRequest
from autosbp.service.services import artifacts, calibrations, clusters, list_details, strategies
from autosbp.service.services._list_page import ListPage
from autosbp.service.web.page_route import page_router
from autosbp.service.web.presenters import cluster as present
from autosbp.service.web.presenters.calibration import calibration_view
from autosbp.service.web.presenters.list_rows import calibration_line, cluster_line, strategy_lines
from autosbp.service.web.rendering import render

routes = page_router("search")
measuring = page_router("calibrate")
_PAGE = 25
_FEW = 10
_MOST_OPS = 100
Cursor = Annotated[str | None, Query(max_length=200)]


@routes.get("/clusters")
def listing(request: Request, state: StateDep, cursor: Cursor = None) -> Response:
    """Lists clusters, newest first."""
    rows, following = clusters.listing(state, ListPage(_PAGE, cursor))
    lines = [cluster_line(row) for row in rows]
    following = f"/clusters?cursor={following}" if following else None
    return render(request, "clusters.html", lines=lines, following=following)


@routes.get("/clusters/{cluster_id}")
@in_thread
def one(request: Request, state: StateDep, cluster_id: PathId) -> Response:
    """Shows the spec, and the newest calibration's points and fits."""
    return _cluster(request, state, cluster_id)


@measuring.post("/clusters/{cluster_id}/calibrate")
def calibrate(request: Request, state: StateDep, cluster_id: PathId) -> Response:
    """Queues a measurement of the cluster's collectives."""
    try:
        job = calibrations.measure(state, CalibrationRequest(cluster_id=cluster_id))
    except (AutosbpError, ProblemError) as error:
        problem = problem_of(error)
        return _cluster(request, state, cluster_id, int(problem["status"]), problem)
    return RedirectResponse(f"/jobs/{job.id}", 303)


@routes.get("/calibrations/{calibration_id}")
@in_thread
def calibration(request: Request, state: StateDep, calibration_id: PathId) -> Response:
    """Shows all points, fits and ops."""
    row = calibrations.get(state, calibration_id)
    return render(
        request,
        "calibration.html",
        row=row,
        cluster=clusters.get(state, row.cluster_id),
        view=calibration_view(row, _MOST_OPS),
        versions=[
            calibration_line(each) for each in calibrations.listing(state, ListPage(_PAGE), root_id=row.root_id)[0]
        ],
        shown=True,
        files=artifacts.listing(state, ListPage(_PAGE), job_id=row.job_id)[0] if row.job_id else [],
    )


def _cluster(
    request: Request, state: AppState, cluster_id: str, status: int = 200, problem: dict[str, object] | None = None
) -> Response:
    row = clusters.get(state, cluster_id)
    measured, _ = calibrations.listing(state, ListPage(_FEW), cluster_id=row.id)
    newest = calibrations.get(state, measured[0].id) if measured else None
    found, _ = strategies.listing(state, ListPage(_FEW), cluster_id=row.id)
    return render(
        request,
        "cluster.html",
        status,
        row=row,
        problem=problem,
        figures=present.figures(row),
        levels=present.levels(row),
        facts=present.device_facts(row),
        calibrations=[calibration_line(each) for each in measured],
        newest=newest,
        view=calibration_view(newest, 0) if newest else None,
        strategies=strategy_lines(found, list_details.strategy_details(state, (each.id for each in found))),
    )
