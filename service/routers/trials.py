"""Routes of /v1/trials: run, list, read, judge and delete trials, and read their logs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from fastapi.responses import PlainTextResponse

from autosbp.service.http.api_route import in_thread, max_body
from autosbp.service.http.etags import IfMatch, check_if_match, etag, set_etag
from autosbp.service.models import TrialRow
from autosbp.service.request_state import StateDep
from autosbp.service.routers._base import (
    IDEMPOTENT,
    Cascade,
    documented_delete_problems,
    documented_etag,
    documented_job,
    documented_list,
    documented_post_problems,
    documented_problems,
    respond_with_page,
    respond_with_queued_job,
    router,
)
from autosbp.service.schemas._base import Page, PathId, QueryId, WindowDep
from autosbp.service.schemas.jobs import Job, JobState
from autosbp.service.schemas.trials import JudgeRequest, Label, Trial, TrialBrief, TrialRequest
from autosbp.service.services import deletion, gate_results, trials

routes = router("trials", "trial")
_LINKS = {"trial": "get /v1/trials/{trial_id}", "log": "get /v1/trials/{trial_id}/logs"}


@routes.post(
    "",
    summary="Run and measure a strategy",
    status_code=202,
    responses={**documented_job(), **documented_post_problems()},
    openapi_extra=IDEMPOTENT,
)
@max_body(2**20)
def create_trial(state: StateDep, response: Response, request: TrialRequest) -> Job:
    """Queues a trial. Answers 202 with the job; its ``resource`` is the trial.

    If the strategy was searched with a calibration, the trial's measurements create a corrected version of it, named in
    the job's result.
    """
    return respond_with_queued_job(response, trials.create(state, request))


@routes.get("", summary="List trials", response_model=Page[TrialBrief], responses=documented_list("trial_id", **_LINKS))
def list_trials(
    state: StateDep,
    window: WindowDep,
    strategy_id: QueryId = None,
    baseline: QueryId = None,
    job_state: Annotated[JobState | None, Query(alias="state")] = None,
    label: Annotated[Label | None, Query()] = None,
    passed: bool | None = None,
) -> Response:
    """Lists trials, newest first. Optionally of one strategy, baseline, state of their job, label or gate outcome."""
    equal = {"strategy_id": strategy_id, "baseline": baseline, "label": label, "passed": passed}
    rows, following = trials.listing(state, window, job_state, **equal)
    return respond_with_page(TrialBrief, rows, following)


@routes.get("/{trial_id:name}", summary="One trial: predicted and measured", responses=documented_etag(404))
def get_trial(state: StateDep, response: Response, trial_id: PathId) -> Trial:
    """Returns the trial with everything that was measured."""
    row = trials.get(state, trial_id)
    set_etag(response, *_version(row))
    return Trial.model_validate(row)


@routes.post(
    "/{trial_id}:judge",
    summary="Evaluate the gates of a trial",
    responses={200: documented_etag()[200], **documented_post_problems(404, 412)},
    openapi_extra=IDEMPOTENT,
)
def judge_trial(
    state: StateDep, response: Response, trial_id: PathId, request: JudgeRequest, if_match: IfMatch = None
) -> Trial:
    """Checks a trial's measurements against limits; later trials are compared with trials that passed.

    Answers 409 if the trial has not succeeded, or was evaluated with other limits before.
    """
    row = gate_results.judge(state, trial_id, request, lambda row: check_if_match(if_match, etag(*_version(row))))
    set_etag(response, *_version(row))
    return Trial.model_validate(row)


def _version(row: TrialRow) -> tuple[object, ...]:
    return (row.id, row.job.revision, *(() if row.passed is None else ("judged",)))


@routes.get(
    "/{trial_id}/logs",
    summary="A trial's log",
    response_class=PlainTextResponse,
    responses=documented_problems(404),
)
@in_thread
def get_trial_log(state: StateDep, trial_id: PathId) -> Response:
    """Returns the ranks' log as text, also while the trial runs; empty before its first line."""
    return PlainTextResponse(trials.read_log(state, trial_id))


@routes.delete("/{trial_id:name}", summary="Delete a trial", status_code=204, responses=documented_delete_problems())
def delete_trial(state: StateDep, trial_id: PathId, cascade: Cascade = False, if_match: IfMatch = None) -> None:
    """Deletes the trial with its job, which must have ended, and their files.

    Answers 409 while it has artifacts; ``cascade`` deletes these as well. The calibration version that it created
    stays.
    """
    deletion.remove(
        state, TrialRow, trial_id, "trial", lambda row: check_if_match(if_match, etag(*_version(row))), cascade=cascade
    )
