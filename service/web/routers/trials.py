"""/trials: the list, and one trial with its log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse

from autosbp.service.http.api_route import in_thread
from autosbp.service.jobs._base import FINAL_STATES
from autosbp.service.models import TrialRow
from autosbp.service.request_state import AppState, StateDep
from autosbp.service.schemas._base import PathId
from autosbp.service.schemas.jobs import JobState
from autosbp.service.schemas.trials import TrialRequest
from autosbp.service.services import artifacts, clusters, list_details, models, strategies, trials
from autosbp.service.services._list_page import ListPage
from autosbp.service.web.forms import FormDep
from autosbp.service.web.page_route import page_router
from autosbp.service.web.presenters.list_rows import job_line, trial_lines
from autosbp.service.web.presenters.trial import trial_view
from autosbp.service.web.rendering import render, render_part

routes = page_router("trial")
_PAGE = 50
_MOST_BYTES = 64 * 1024
_STATES = ("queued", "running", "succeeded", "failed", "cancelled")
Cursor = Annotated[str | None, Query(max_length=200)]


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a log; ``skipped`` bytes precede it."""

    text: str
    skipped: int


@routes.get("/trials")
def listing(
    request: Request,
    state: StateDep,
    job_state: Annotated[JobState | None | str, Query(alias="state", max_length=16)] = None,
    cursor: Cursor = None,
) -> Response:
    """Lists trials, newest first, optionally of one state."""
    wanted = job_state if job_state in _STATES else None
    rows, following = trials.listing(state, ListPage(_PAGE, cursor), wanted)
    more = f"state={wanted}&" if wanted else ""
    return render(
        request,
        "trials.html",
        trials=trial_lines(rows, list_details.strategy_details(state, (row.strategy_id for row in rows))),
        states=_STATES,
        wanted=wanted,
        following=f"/trials?{more}cursor={following}" if following else None,
    )


@routes.post("/trials")
def create(state: StateDep, form: FormDep) -> Response:
    """Runs a strategy, or one of its baselines."""
    body = {
        "strategy_id": form.text("strategy_id"),
        "baseline": form.text("baseline"),
        **{name: value for name in ("steps", "warmup", "seed") if (value := form.integer(name)) is not None},
    }
    job = trials.create(state, TrialRequest.read(body))
    return RedirectResponse(f"/trials/{job.payload['trial_id']}", 303)


@routes.get("/trials/{trial_id}")
@in_thread
def one(request: Request, state: StateDep, trial_id: PathId) -> Response:
    """Shows prediction and measurement, and the log."""
    row = trials.get(state, trial_id)
    strategy = strategies.get(state, row.strategy_id)
    heading = f"{models.get(state, strategy.model_id).name} on {clusters.get(state, strategy.cluster_id).name}"
    return render(request, "trial.html", heading=heading, **_shown(state, row))


@routes.get("/trials/{trial_id}/live")
@in_thread
def live(request: Request, state: StateDep, trial_id: PathId) -> Response:
    """Shows the part of the page that changes."""
    shown = _shown(state, trials.get(state, trial_id))
    return render_part(request, "trial_live.html", "Trial", f"/trials/{trial_id}", **shown)


def _shown(state: AppState, row: TrialRow) -> dict[str, Any]:
    return {
        "row": row,
        "line": job_line(row.job),
        "ended": row.job.state in FINAL_STATES,
        "view": trial_view(row),
        "log": _log(state, row.id),
        "files": artifacts.listing(state, ListPage(_PAGE), job_id=row.job_id)[0],
    }


def _log(state: AppState, trial_id: str) -> LogEnd:
    log = trials.read_log(state, trial_id)
    skipped = max(0, len(log) - _MOST_BYTES)
    return LogEnd(log[skipped:].decode(errors="replace"), skipped)
