"""/: running jobs, and the latest strategies and trials."""

from __future__ import annotations

from fastapi import Request, Response

from autosbp.service.request_state import AppState, StateDep
from autosbp.service.services import jobs, list_details, strategies, trials
from autosbp.service.services._list_page import ListPage
from autosbp.service.web.page_route import page_router
from autosbp.service.web.presenters.list_rows import JobLine, job_line, strategy_lines, trial_lines
from autosbp.service.web.rendering import render, render_part

routes = page_router()
_FEW = 6
_MOST_ACTIVE = 50


@routes.get("/")
def home(request: Request, state: StateDep) -> Response:
    """Shows the home page."""
    found, _ = strategies.listing(state, ListPage(_FEW))
    tried, _ = trials.listing(state, ListPage(_FEW), None)
    details = list_details.strategy_details(state, (*(row.id for row in found), *(row.strategy_id for row in tried)))
    return render(
        request,
        "home.html",
        active=_active(state),
        strategies=strategy_lines(found, details),
        trials=trial_lines(tried, details),
    )


@routes.get("/running")
def running(request: Request, state: StateDep) -> Response:
    """Shows running and queued jobs; the home page polls it."""
    return render_part(request, "running.html", "Running now", "/", active=_active(state))


def _active(state: AppState) -> list[JobLine]:
    running, _ = jobs.listing(state, ListPage(_MOST_ACTIVE), state="running")
    queued, _ = jobs.listing(state, ListPage(_MOST_ACTIVE), state="queued")
    return [job_line(row) for row in (*running, *reversed(queued))]
