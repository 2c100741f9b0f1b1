"""/plan: the planning form. /searches: the search and its plan."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse

from autosbp.errors import AutosbpError, InputError
from autosbp.graph.onnx import model_name
from autosbp.service.http.api_route import in_capture_threads, max_body
from autosbp.service.jobs._base import FINAL_STATES
from autosbp.service.models import JobRow, ModelRow, SearchRow
from autosbp.service.problem_details import ProblemError, not_found, problem_of
from autosbp.service.request_state import AppState, StateDep
from autosbp.service.schemas._base import Document, PathId, QueryId
from autosbp.service.schemas.models import HfModel
from autosbp.service.schemas.options import PlanOptions
from autosbp.service.schemas.searches import SearchOfCapture, SearchRequest
from autosbp.service.services import calibrations, clusters, jobs, models, searches, strategies
from autosbp.service.services._list_page import ListPage
from autosbp.service.web.forms import Form, FormDep, Upload
from autosbp.service.web.page_route import page_router
from autosbp.service.web.presenters import plan_form
from autosbp.service.web.presenters.list_rows import job_line
from autosbp.service.web.presenters.request_words import option_facts
from autosbp.service.web.presenters.strategy import brief
from autosbp.service.web.presenters.tuning import tuning_view
from autosbp.service.web.rendering import render, render_part

routes = page_router("search")
_CHOICES = 100
Chosen = Annotated[str, Query(max_length=64)]


@routes.get("/plan")
def form(
    request: Request, state: StateDep, model_id: Chosen = "", cluster_id: Chosen = "", capture_id: QueryId = None
) -> Response:
    """Shows the form; a model or cluster may be preselected, or all that an earlier capture was posted with."""
    if capture_id is not None:
        return _restored_form(request, state, capture_id)
    given = {
        **({"source": "stored", "model_id": model_id} if model_id else {}),
        **({"where": "stored", "cluster_id": cluster_id} if cluster_id else {}),
    }
    return _form(request, state, Form(given))


@routes.post("/plan")
@max_body(None)
@in_capture_threads
def plan(request: Request, state: StateDep, given: FormDep) -> Response:
    """Stores new inputs and queues the search; of a Hugging Face configuration or ONNX file, a capture that queues it."""
    try:
        asked = plan_form.parse_form(given)
        PlanOptions.read(dict(asked.options)).checked()
        parsed = None if asked.onnx is None else _parsed(state, asked.onnx)
        cluster_id = asked.cluster_id or clusters.create(state, dict(asked.cluster or {}))[0].id
        model = dict(asked.model or {})
        body: Document = {"cluster_id": cluster_id, "options": dict(asked.options)}
        if asked.num_trials is not None:
            body |= {"mode": "tune", "tuning": {"trials": asked.num_trials}}
        if asked.calibration_id:
            body["calibration_id"] = asked.calibration_id
        if parsed is not None or "hf_config" in model:
            following = SearchOfCapture.read(body)
            payload = HfModel.read(model).payload() if parsed is None else parsed
            return RedirectResponse(f"/plan/captures/{models.submit(state, payload, following).id}", 303)
        model_id = models.create(state, model)[0].id if model else asked.model_id or ""
        job, _ = searches.create(state, SearchRequest.read({**body, "model_id": model_id}))
    except (AutosbpError, ProblemError) as error:
        problem = problem_of(error)
        return _form(request, state, given, int(problem["status"]), problem=problem)
    return RedirectResponse(f"/searches/{job.payload['search_id']}", 303)


def _parsed(state: AppState, file: Upload) -> Document:
    """Parse an ONNX file into the payload of its capture; errors name the form's field."""
    most_bytes = plan_form.max_file_bytes(state.settings.max_body_bytes)
    if len(file.content) > most_bytes:
        value, limit = f"{file.name}, {len(file.content)} bytes", f"expected a file of at most {most_bytes} bytes"
        raise InputError(plan_form.ONNX, value, limit)
    return models.read_onnx(state.settings, file.content, model_name(file.name), file.name)


def _capture_job(state: AppState, job_id: str) -> JobRow:
    """A capture's job; raises 404."""
    job = jobs.get(state, job_id)
    if job.kind != "capture":
        raise not_found("capture", job_id)
    return job


def _restored_form(request: Request, state: AppState, job_id: str) -> Response:
    """Show the form that a capture was posted with, and why the capture failed or its search was refused."""
    job = _capture_job(state, job_id)
    result = job.result or {}
    given = plan_form.restore_form(job.payload, result.get("model_id"))
    return _form(request, state, given, problem=job.problem or result.get("search_problem"))


@routes.get("/plan/captures/{capture_id}")
def capture(request: Request, state: StateDep, capture_id: PathId) -> Response:
    """Shows the progress of a capture, which the service searches next, and leads to that search."""
    job = _capture_job(state, capture_id)
    shown = {"job": job, "line": job_line(job), "result": job.result or {}}
    return render_part(request, "capture.html", "Model capture", "/plan", **shown)


@routes.get("/searches/{search_id}")
def search(request: Request, state: StateDep, search_id: PathId) -> Response:
    """Shows the request, the progress, and the plan once it is found."""
    row = searches.get(state, search_id)
    model, cluster = models.get(state, row.model_id), clusters.get(state, row.cluster_id)
    shown = {"options": option_facts(row.options), **_outcome(state, row, model)}
    return render(request, "search.html", row=row, model=model, cluster=cluster, **shown)


@routes.get("/searches/{search_id}/outcome")
def outcome(request: Request, state: StateDep, search_id: PathId) -> Response:
    """Shows the part of the page that changes."""
    row = searches.get(state, search_id)
    shown = _outcome(state, row, models.get(state, row.model_id))
    return render_part(request, "outcome.html", "Search", f"/searches/{search_id}", row=row, **shown)


def _outcome(state: AppState, row: SearchRow, model: ModelRow) -> dict[str, Any]:
    found = strategies.get(state, row.strategy_id) if row.strategy_id else None
    cluster = clusters.get(state, row.cluster_id).name
    return {
        "line": job_line(row.job),
        "ended": row.job.state in FINAL_STATES,
        "problem": row.job.problem,
        "plan": brief(found, model.name, cluster) if found else None,
        "front": row.front or [],
        "tuning": None if row.tuning is None else tuning_view(searches.tuning_summary(state, row.id)),
        "period": "1s" if row.tuning is None else "3s",
    }


def _form(
    request: Request,
    state: AppState,
    given: Form,
    status: int = 200,
    problem: dict[str, Any] | None = None,
) -> Response:
    window = ListPage(_CHOICES)
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
        wrong_file=problem is not None and plan_form.concerns_onnx_file(problem),
        most_bytes=plan_form.max_file_bytes(state.settings.max_body_bytes),
        most_config_bytes=plan_form.MOST_CONFIG_BYTES,
        zoo=plan_form.zoo(),
        presets=plan_form.cluster_presets(),
        searchers=plan_form.searchers(),
        schedules=plan_form.schedules(),
        precisions=plan_form.precisions(),
        models=models.listing(state, window)[0],
        clusters=known_clusters,
        calibrations=[(row.id, f"{names.get(row.cluster_id, row.cluster_id)}, {row.backend}") for row in kept],
    )
