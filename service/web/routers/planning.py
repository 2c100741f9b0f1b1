"""/plan: the form that asks for a plan. /searches: the plan appears."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse

from autosbp.errors import AutosbpError, InputError
from autosbp.graph.onnx import model_name
from service.jobs._base import FINAL
from service.models import JobRow, ModelRow, SearchRow
from service.problems import ProblemError, not_found, problem_of
from service.schemas._base import ID_PATTERN, Document, PathId
from service.schemas.options import PlanOptions
from service.schemas.searches import SearchRequest
from service.services import calibrations, clusters, jobs, models, searches, strategies
from service.services._window import Window
from service.state import State, StateDep
from service.web.forms import Form, FormDep, Upload
from service.web.presenters import planning
from service.web.presenters.lists import job_line
from service.web.presenters.strategy import brief
from service.web.rendering import render, render_part
from service.web.route import pages

routes = pages("search")
_CHOICES = 100
Chosen = Annotated[str, Query(max_length=64)]


@routes.get("/plan")
def form(request: Request, state: StateDep, model_id: Chosen = "", cluster_id: Chosen = "") -> Response:
    """The empty form; a model or cluster may be chosen already."""
    given = {
        **({"source": "stored", "model_id": model_id} if model_id else {}),
        **({"where": "stored", "cluster_id": cluster_id} if cluster_id else {}),
    }
    return _form(request, state, Form(given))


@routes.post("/plan")
def plan(request: Request, state: StateDep, given: FormDep) -> Response:
    """Store what is new and search; a Hugging Face configuration or an ONNX file is captured first, by a job."""
    try:
        if (failed := given.text(planning.AGAIN)) is not None:
            return _again(request, state, given, failed)
        asked = planning.asked(given)
        PlanOptions.read(dict(asked.options)).checked()
        parsed = None if asked.onnx is None else _parsed(state, asked.onnx)
        cluster_id = asked.cluster_id or clusters.create(state, dict(asked.cluster or {}))[0].id
        outcome = None if asked.model is None else models.create(state, dict(asked.model))
        outcome = outcome if parsed is None else models.submit(state, parsed)
        if isinstance(outcome, JobRow):
            return _form(request, state, given, 202, waiting=outcome, cluster_id=cluster_id)
        model_id = asked.model_id or (outcome[0].id if outcome else "")
        body = {"model_id": model_id, "cluster_id": cluster_id, "options": dict(asked.options)}
        if asked.calibration_id:
            body["calibration_id"] = asked.calibration_id
        job, _ = searches.create(state, SearchRequest.read(body))
    except (AutosbpError, ProblemError) as error:
        problem = problem_of(error)
        return _form(request, state, given, int(problem["status"]), problem=problem)
    return RedirectResponse(f"/searches/{job.payload['search_id']}", 303)


def _parsed(state: State, file: Upload) -> Document:
    """The payload of the capture of an ONNX file; the form says which file is refused, and why."""
    most_bytes = planning.most_file_bytes(state.settings.max_body_bytes)
    if len(file.content) > most_bytes:
        value, limit = f"{file.name}, {len(file.content)} bytes", f"a file of at most {most_bytes} bytes is expected"
        raise InputError(planning.ONNX, value, limit)
    return models.read_onnx(state.settings, file.content, model_name(file.name), file.name)


def _again(request: Request, state: State, given: Form, job_id: str) -> Response:
    """The form as it was before its model could not be captured, with the reason."""
    if re.fullmatch(ID_PATTERN, job_id) is None or (job := jobs.get(state, job_id)).kind != "capture":
        raise not_found("capture", job_id)
    return _form(request, state, planning.once_more(given, job.payload), problem=job.problem)


@routes.get("/plan/captures/{job_id}")
def capture(request: Request, state: StateDep, job_id: PathId) -> Response:
    """How far the capture of a configuration is; when it is there, the form goes on by itself."""
    job = jobs.get(state, job_id)
    model_id = (job.result or {}).get("model_id")
    return render_part(
        request, "capture.html", "Capture of a model", "/plan", job=job, line=job_line(job), model_id=model_id
    )


@routes.get("/searches/{search_id}")
def search(request: Request, state: StateDep, search_id: PathId) -> Response:
    """What was asked for, how far it is, and the plan as soon as it is there."""
    row = searches.get(state, search_id)
    model, cluster = models.get(state, row.model_id), clusters.get(state, row.cluster_id)
    return render(request, "search.html", row=row, model=model, cluster=cluster, **_outcome(state, row, model))


@routes.get("/searches/{search_id}/outcome")
def outcome(request: Request, state: StateDep, search_id: PathId) -> Response:
    """The part of the page that changes."""
    row = searches.get(state, search_id)
    shown = _outcome(state, row, models.get(state, row.model_id))
    return render_part(request, "outcome.html", "Search", f"/searches/{search_id}", row=row, **shown)


def _outcome(state: State, row: SearchRow, model: ModelRow) -> dict[str, Any]:
    found = strategies.get(state, row.strategy_id) if row.strategy_id else None
    cluster = clusters.get(state, row.cluster_id).name
    return {
        "line": job_line(row.job),
        "ended": row.job.state in FINAL,
        "problem": row.job.problem,
        "plan": brief(found, model.name, cluster) if found else None,
        "front": row.front or [],
    }


def _form(
    request: Request,
    state: State,
    given: Form,
    status: int = 200,
    problem: dict[str, Any] | None = None,
    waiting: JobRow | None = None,
    cluster_id: str = "",
) -> Response:
    window = Window(_CHOICES)
    known_clusters, _ = clusters.listing(state, window)
    names = {row.id: row.name for row in known_clusters}
    kept, _ = calibrations.listing(state, window)
    return render(
        request,
        "plan.html",
        status,
        given=given.fields,
        problem=problem,
        wrong=(problem or {}).get("field", ""),
        wrong_file=problem is not None and planning.is_of_model(problem),
        most_bytes=planning.most_file_bytes(state.settings.max_body_bytes),
        most_config_bytes=planning.MOST_CONFIG_BYTES,
        zoo=planning.zoo(),
        presets=planning.cluster_presets(),
        searchers=planning.searchers(),
        schedules=planning.schedules(),
        models=models.listing(state, window)[0],
        clusters=known_clusters,
        calibrations=[(row.id, f"{names.get(row.cluster_id, row.cluster_id)}, {row.backend}") for row in kept],
        waiting=waiting,
        line=job_line(waiting) if waiting else None,
        carried={**planning.carried(given), "where": "stored", "cluster_id": cluster_id} if waiting else {},
    )
