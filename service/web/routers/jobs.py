"""/jobs: everything that takes long, and how to stop it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse

from service.jobs._base import FINAL
from service.models import JobRow
from service.schemas._base import PathId
from service.services import jobs
from service.services._window import Window
from service.state import StateDep
from service.web.presenters.lists import job_line, page_of
from service.web.rendering import render, render_part
from service.web.route import pages

routes = pages("search", "trial", "calibrate")
_PAGE = 25
_STATES = ("queued", "running", "succeeded", "failed", "cancelled")
_KINDS = tuple(jobs.SCOPE_OF)
Chosen = Annotated[str, Query(max_length=16)]
Cursor = Annotated[str | None, Query(max_length=200)]


@routes.get("/jobs")
def listing(
    request: Request,
    state: StateDep,
    job_state: Annotated[str, Query(alias="state", max_length=16)] = "",
    kind: Chosen = "",
    cursor: Cursor = None,
) -> Response:
    """Newest first, filtered."""
    rows, following = jobs.listing(state, Window(_PAGE, cursor), state=job_state or None, kind=kind or None)
    chosen = {"state": job_state, "kind": kind}
    kept = "".join(f"{name}={value}&" for name, value in chosen.items() if value in (*_STATES, *_KINDS))
    return render(
        request,
        "jobs.html",
        lines=[job_line(row) for row in rows],
        states=_STATES,
        kinds=_KINDS,
        chosen=chosen,
        following=f"/jobs?{kept}cursor={following}" if following else None,
    )


@routes.get("/jobs/{job_id}")
def one(request: Request, state: StateDep, job_id: PathId) -> Response:
    """Its state; it leads on to what it makes."""
    row = jobs.get(state, job_id)
    return render(request, "job.html", **_shown(row))


@routes.get("/jobs/{job_id}/status")
def status(request: Request, state: StateDep, job_id: PathId) -> Response:
    """The part of the page that changes."""
    row = jobs.get(state, job_id)
    return render_part(request, "job_status.html", "Job", f"/jobs/{job_id}", **_shown(row))


@routes.post("/jobs/{job_id}/cancel")
def cancel(state: StateDep, job_id: PathId) -> Response:
    """Ask for its end."""
    row = jobs.cancel(state, job_id, lambda _: None)
    return RedirectResponse(page_of(row), 303)


def _shown(row: JobRow) -> dict[str, Any]:
    there = page_of(row)
    return {
        "row": row,
        "line": job_line(row),
        "ended": row.state in FINAL,
        "there": there if there != f"/jobs/{row.id}" else None,
        "cancels": jobs.SCOPE_OF.get(row.kind, "admin"),
    }
