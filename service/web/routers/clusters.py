"""/clusters and /calibrations: what runs, and what was measured of it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse

from autosbp.errors import AutosbpError
from service.edge.route import slow
from service.models import JobRow
from service.problems import ProblemError, problem_of
from service.schemas._base import PathId
from service.services import artifacts, calibrations, clusters, names, strategies
from service.services._window import Window
from service.state import State, StateDep
from service.web.presenters import cluster as present
from service.web.presenters.calibration import calibration_view
from service.web.presenters.lists import calibration_line, cluster_line, strategy_lines
from service.web.rendering import render
from service.web.route import pages

routes = pages("search")
measuring = pages("calibrate")
_PAGE = 25
_FEW = 10
_MOST_OPS = 100
Cursor = Annotated[str | None, Query(max_length=200)]


@routes.get("/clusters")
def listing(request: Request, state: StateDep, cursor: Cursor = None) -> Response:
    """Newest first."""
    rows, following = clusters.listing(state, Window(_PAGE, cursor))
    lines = [cluster_line(row) for row in rows]
    following = f"/clusters?cursor={following}" if following else None
    return render(request, "clusters.html", lines=lines, following=following)


@routes.get("/clusters/{cluster_id}")
@slow
def one(request: Request, state: StateDep, cluster_id: PathId) -> Response:
    """Its spec, and its newest calibration's points against the fit."""
    return _cluster(request, state, cluster_id)


@measuring.post("/clusters/{cluster_id}/calibrate")
def calibrate(request: Request, state: StateDep, cluster_id: PathId) -> Response:
    """Measure its collectives, as a job."""
    try:
        outcome = calibrations.create(state, {"cluster_id": cluster_id})
    except (AutosbpError, ProblemError) as error:
        problem = problem_of(error)
        return _cluster(request, state, cluster_id, int(problem["status"]), problem)
    assert isinstance(outcome, JobRow)
    return RedirectResponse(f"/jobs/{outcome.id}", 303)


@routes.get("/calibrations/{calibration_id}")
@slow
def calibration(request: Request, state: StateDep, calibration_id: PathId) -> Response:
    """All points, fits and ops."""
    row = calibrations.get(state, calibration_id)
    return render(
        request,
        "calibration.html",
        row=row,
        cluster=clusters.get(state, row.cluster_id),
        view=calibration_view(row, _MOST_OPS),
        versions=[
            calibration_line(each) for each in calibrations.listing(state, Window(_PAGE), root_id=row.root_id)[0]
        ],
        shown=True,
        files=artifacts.listing(state, Window(_PAGE), job_id=row.job_id)[0] if row.job_id else [],
    )


def _cluster(
    request: Request, state: State, cluster_id: str, status: int = 200, problem: dict[str, object] | None = None
) -> Response:
    row = clusters.get(state, cluster_id)
    measured, _ = calibrations.listing(state, Window(_FEW), cluster_id=row.id)
    newest = calibrations.get(state, measured[0].id) if measured else None
    found, _ = strategies.listing(state, Window(_FEW), cluster_id=row.id)
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
        strategies=strategy_lines(found, names.of_models(state, (each.model_id for each in found)), {row.id: row.name}),
    )
