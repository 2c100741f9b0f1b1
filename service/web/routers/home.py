"""/: what is running, and what was found and measured last."""

from __future__ import annotations

from fastapi import Request, Response

from service.services import jobs, names, strategies, trials
from service.services._window import Window
from service.state import State, StateDep
from service.web.presenters.lists import JobLine, job_line, strategy_lines, trial_lines
from service.web.rendering import render, render_part
from service.web.route import pages

routes = pages()
_FEW = 6
_MOST_ACTIVE = 50


@routes.get("/")
def home(request: Request, state: StateDep) -> Response:
    """The first page."""
    found, _ = strategies.listing(state, Window(_FEW))
    models = names.of_models(state, (row.model_id for row in found))
    clusters = names.of_clusters(state, (row.cluster_id for row in found))
    tried, _ = trials.listing(state, Window(_FEW), None)
    return render(
        request,
        "home.html",
        active=_active(state),
        strategies=strategy_lines(found, models, clusters),
        trials=trial_lines(tried),
    )


@routes.get("/running")
def running(request: Request, state: StateDep) -> Response:
    """Jobs that run or wait; the first page asks again and again."""
    return render_part(request, "running.html", "Running now", "/", active=_active(state))


def _active(state: State) -> list[JobLine]:
    running, _ = jobs.listing(state, Window(_MOST_ACTIVE), state="running")
    queued, _ = jobs.listing(state, Window(_MOST_ACTIVE), state="queued")
    return [job_line(row) for row in (*running, *reversed(queued))]
