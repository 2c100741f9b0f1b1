"""/jobs: long-running work, and how to cancel it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse

from autosbp.service.jobs._base import FINAL_STATES
from autosbp.service.models import JobRow
from autosbp.service.request_state import AppState, StateDep
from autosbp.service.schemas._base import PathId
from autosbp.service.services import jobs, list_details
from autosbp.service.services._list_page import ListPage
from autosbp.service.web.page_route import page_router
from autosbp.service.web.presenters.list_rows import job_line, job_page
from autosbp.service.web.rendering import render, render_part

routes = page_router("search", "trial", "calibrate")
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
    """Lists jobs, newest first, filtered."""
    rows, following = jobs.listing(state, ListPage(_PAGE, cursor), state=job_state or None, kind=kind or None)
    failed = list_details.failed_gates(state, (row.id for row in rows))
    chosen = {"state": job_state, "kind": kind}
    kept = "".join(f"{name}={value}&" for name, value in chosen.items() if value in (*_STATES, *_KINDS))
    return render(
        request,
        "jobs.html",
        lines=[job_line(row, failed) for row in rows],
        states=_STATES,
        kinds=_KINDS,
        chosen=chosen,
        following=f"/jobs?{kept}cursor={following}" if following else None,
    )


@routes.get("/jobs/{job_id}")
def one(request: Request, state: StateDep, job_id: PathId) -> Response:
    """Shows the job's state and a link to its resource."""
    row = jobs.get(state, job_id)
    return render(request, "job.html", **_shown(state, row))


@routes.get("/jobs/{job_id}/status")
def status(request: Request, state: StateDep, job_id: PathId) -> Response:
    """Shows the part of the page that changes."""
    row = jobs.get(state, job_id)
    return render_part(request, "job_status.html", "Job", f"/jobs/{job_id}", **_shown(state, row))


@routes.post("/jobs/{job_id}/cancel")
def cancel(state: StateDep, job_id: PathId) -> Response:
    """Requests cancellation."""
    row = jobs.cancel(state, job_id, lambda _: None)
    return RedirectResponse(job_page(row), 303)


def _shown(state: AppState, row: JobRow) -> dict[str, Any]:
    there = job_page(row)
    return {
        "row": row,
        "line": job_line(row, list_details.failed_gates(state, [row.id])),
        "ended": row.state in FINAL_STATES,
        "there": there if there != f"/jobs/{row.id}" else None,
        "cancels": jobs.SCOPE_OF.get(row.kind, "admin"),
    }
