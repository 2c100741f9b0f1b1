"""/trials: the list, and one trial with its log."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse

from service.edge.route import slow
from service.jobs._base import FINAL
from service.models import TrialRow
from service.schemas._base import PathId
from service.schemas.jobs import JobState
from service.schemas.trials import TrialRequest
from service.services import artifacts, clusters, models, strategies, trials
from service.services._window import Window
from service.state import State, StateDep
from service.web.forms import FormDep
from service.web.presenters.lists import job_line, trial_lines
from service.web.presenters.trial import trial_view
from service.web.rendering import render, render_part
from service.web.route import pages

routes = pages("trial")
_PAGE = 25
_MOST_BYTES = 64 * 1024
_STATES = ("queued", "running", "succeeded", "failed", "cancelled")
Cursor = Annotated[str | None, Query(max_length=200)]


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a log; ``skipped`` bytes stand before it."""

    text: str
    skipped: int


@routes.get("/trials")
def listing(
    request: Request,
    state: StateDep,
    job_state: Annotated[JobState | None | str, Query(alias="state", max_length=16)] = None,
    cursor: Cursor = None,
) -> Response:
    """Newest first; of one state, if asked."""
    wanted = job_state if job_state in _STATES else None
    rows, following = trials.listing(state, Window(_PAGE, cursor), wanted)
    more = f"state={wanted}&" if wanted else ""
    return render(
        request,
        "trials.html",
        trials=trial_lines(rows),
        states=_STATES,
        wanted=wanted,
        following=f"/trials?{more}cursor={following}" if following else None,
    )


@routes.post("/trials")
def create(state: StateDep, form: FormDep) -> Response:
    """Run a strategy, or one of its baselines."""
    body = {
        "strategy_id": form.text("strategy_id"),
        "baseline": form.text("baseline"),
        **{name: value for name in ("steps", "warmup", "seed") if (value := form.integer(name)) is not None},
    }
    job = trials.create(state, TrialRequest.read(body))
    return RedirectResponse(f"/trials/{job.payload['trial_id']}", 303)


@routes.get("/trials/{trial_id}")
@slow
def one(request: Request, state: StateDep, trial_id: PathId) -> Response:
    """Predicted against measured; while it runs, its log."""
    row = trials.get(state, trial_id)
    strategy = strategies.get(state, row.strategy_id)
    heading = f"{models.get(state, strategy.model_id).name} on {clusters.get(state, strategy.cluster_id).name}"
    return render(request, "trial.html", heading=heading, **_shown(state, row))


@routes.get("/trials/{trial_id}/live")
@slow
def live(request: Request, state: StateDep, trial_id: PathId) -> Response:
    """The part of the page that changes."""
    shown = _shown(state, trials.get(state, trial_id))
    return render_part(request, "trial_live.html", "Trial", f"/trials/{trial_id}", **shown)


def _shown(state: State, row: TrialRow) -> dict[str, Any]:
    return {
        "row": row,
        "line": job_line(row.job),
        "ended": row.job.state in FINAL,
        "view": trial_view(row),
        "log": _log(state, row.id),
        "files": artifacts.listing(state, Window(_PAGE), job_id=row.job_id)[0],
    }


def _log(state: State, trial_id: str) -> LogEnd:
    path = trials.log_file(state, trial_id)
    if path is None:
        return LogEnd("", 0)
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        skipped = max(0, size - _MOST_BYTES)
        file.seek(skipped)
        return LogEnd(file.read().decode(errors="replace"), skipped)
