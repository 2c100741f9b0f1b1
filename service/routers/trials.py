"""/v1/trials"""

from __future__ import annotations

from fastapi import Response
from fastapi.responses import FileResponse, PlainTextResponse

from service.routers._base import accepted, problems, queued, router
from service.schemas._base import Cursor, Limit, Page, PathId, QueryId
from service.schemas.jobs import Job
from service.schemas.trials import Trial, TrialBrief, TrialRequest
from service.services import trials
from service.state import StateDep

routes = router("trials")
_TEXT = "text/plain; charset=utf-8"


@routes.post(
    "", summary="Run a strategy and measure it", status_code=202, responses={**accepted(), **problems(413, 429)}
)
def create(state: StateDep, response: Response, request: TrialRequest) -> Job:
    """202 with the job; its ``resource`` is the trial. A trial of a strategy that was searched with a calibration teaches a
    new version of that, which the job's result names."""
    return queued(response, trials.create(state, request))


@routes.get("", summary="List trials")
def listing(state: StateDep, strategy_id: QueryId = None, limit: Limit = 50, cursor: Cursor = None) -> Page[TrialBrief]:
    """Newest first; of one strategy, if asked."""
    rows, following = trials.listing(state, strategy_id, limit, cursor)
    return Page(items=[TrialBrief.model_validate(row) for row in rows], next_cursor=following)


@routes.get("/{trial_id}", summary="One trial: predicted against measured", responses=problems(404))
def get(state: StateDep, trial_id: PathId) -> Trial:
    """The trial with everything that was measured."""
    return Trial.model_validate(trials.get(state, trial_id))


@routes.get(
    "/{trial_id}/logs",
    summary="A trial's log",
    response_class=PlainTextResponse,
    responses=problems(404),
)
def logs(state: StateDep, trial_id: PathId) -> Response:
    """The ranks' log as text, also while the trial runs; empty before its first line."""
    path = trials.log_file(state, trial_id)
    return PlainTextResponse("") if path is None else FileResponse(path, media_type=_TEXT)
