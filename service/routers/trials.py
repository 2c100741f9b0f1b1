"""/v1/trials"""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from fastapi.responses import FileResponse, PlainTextResponse

from service.edge.conditions import IfMatch, etag, expect, tag
from service.models import TrialRow
from service.routers._base import IDEMPOTENT, accepted, listed, paged, posted, problems, queued, router, tagged
from service.schemas._base import Page, PathId, QueryId, WindowDep
from service.schemas.jobs import Job, JobState
from service.schemas.trials import Label, Trial, TrialBrief, TrialRequest, VerdictRequest
from service.services import trials
from service.state import StateDep

routes = router("trials", "trial")
_LINKS = {"trial": "get /v1/trials/{trial_id}", "log": "get /v1/trials/{trial_id}/logs"}
_TEXT = "text/plain; charset=utf-8"


@routes.post(
    "",
    summary="Run a strategy and measure it",
    status_code=202,
    responses={**accepted(), **posted()},
    openapi_extra=IDEMPOTENT,
)
def create(state: StateDep, response: Response, request: TrialRequest) -> Job:
    """202 with the job; its ``resource`` is the trial. A trial of a strategy that was searched with a calibration teaches a
    new version of that, which the job's result names."""
    return queued(response, trials.create(state, request))


@routes.get("", summary="List trials", response_model=Page[TrialBrief], responses=listed("trial_id", **_LINKS))
def listing(
    state: StateDep,
    window: WindowDep,
    strategy_id: QueryId = None,
    baseline: QueryId = None,
    job_state: Annotated[JobState | None, Query(alias="state")] = None,
    label: Annotated[Label | None, Query()] = None,
    passed: bool | None = None,
) -> Response:
    """Newest first; of one strategy, baseline, state of their job, label or outcome of their gates, if asked."""
    equal = {"strategy_id": strategy_id, "baseline": baseline, "label": label, "passed": passed}
    rows, following = trials.listing(state, window, job_state, **equal)
    return paged(TrialBrief, rows, following)


@routes.get("/{trial_id:name}", summary="One trial: predicted against measured", responses=tagged(404))
def get(state: StateDep, response: Response, trial_id: PathId) -> Trial:
    """The trial with everything that was measured."""
    row = trials.get(state, trial_id)
    tag(response, *_version(row))
    return Trial.model_validate(row)


@routes.post(
    "/{trial_id}:judge",
    summary="Judge a trial",
    responses={200: tagged()[200], **posted(404, 412)},
    openapi_extra=IDEMPOTENT,
)
def judge(
    state: StateDep, response: Response, trial_id: PathId, request: VerdictRequest, if_match: IfMatch = None
) -> Trial:
    """Store what came of the gates of a trial that has succeeded: later trials are compared with those that passed. 409 if it
    has not succeeded, or was judged otherwise before."""
    row = trials.judge(state, trial_id, request, lambda row: expect(if_match, etag(*_version(row))))
    tag(response, *_version(row))
    return Trial.model_validate(row)


def _version(row: TrialRow) -> tuple[object, ...]:
    return (row.id, row.job.revision, *(() if row.passed is None else ("judged",)))


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
