"""/questions: why an op has its layout, and the gain from better hardware."""

from __future__ import annotations

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from autosbp.service.http.api_route import in_thread
from autosbp.service.jobs._base import FINAL_STATES
from autosbp.service.request_state import AppState, StateDep
from autosbp.service.schemas._base import Document, PathId
from autosbp.service.schemas.analyses import WhatIfRequest, WhyRequest
from autosbp.service.services import analyses, clusters, models, strategies
from autosbp.service.web.forms import FormDep
from autosbp.service.web.page_route import page_router
from autosbp.service.web.presenters.analysis_answer import what_if_chart, why_answers
from autosbp.service.web.presenters.list_rows import job_line
from autosbp.service.web.rendering import render, render_part

routes = page_router("search")


@routes.post("/strategies/{strategy_id}/why")
def why(state: StateDep, strategy_id: PathId, form: FormDep) -> Response:
    """Asks about an op; equal questions share one answer."""
    return _ask(state, strategy_id, "why", WhyRequest.read({"op": form.text("op") or ""}).model_dump())


@routes.post("/strategies/{strategy_id}/what-if")
def what_if(state: StateDep, strategy_id: PathId, form: FormDep) -> Response:
    """Asks about hardware that is better by a factor."""
    factor = form.number("factor")
    body = {} if factor is None else {"factor": factor}
    return _ask(state, strategy_id, "what-if", WhatIfRequest.read(body).model_dump())


@routes.get("/questions/{analysis_id}")
@in_thread
def question(request: Request, state: StateDep, analysis_id: PathId) -> Response:
    """Shows the question, and its answer once it exists."""
    return render(request, "question.html", **_shown(state, analysis_id))


@routes.get("/questions/{analysis_id}/answer")
@in_thread
def answer(request: Request, state: StateDep, analysis_id: PathId) -> Response:
    """Shows the part of the page that changes."""
    return render_part(request, "answer.html", "Answer", f"/questions/{analysis_id}", **_shown(state, analysis_id))


def _ask(state: AppState, strategy_id: str, kind: str, options: Document) -> Response:
    job, _ = analyses.create(state, strategy_id, kind, options)
    return RedirectResponse(f"/questions/{job.payload['analysis_id']}", 303)


def _shown(state: AppState, analysis_id: str) -> Document:
    row = analyses.get(state, analysis_id)
    strategy = strategies.get(state, row.strategy_id)
    model, cluster = models.get(state, strategy.model_id).name, clusters.get(state, strategy.cluster_id).name
    result = row.result
    return {
        "row": row,
        "strategy_name": f"{model} on {cluster}",
        "line": job_line(row.job),
        "ended": row.job.state in FINAL_STATES,
        "axes": [name for name, *_ in strategy.plan["strategy"]["mesh"]["axes"]],
        "answers": why_answers(result) if result and row.kind == "why" else (),
        "chart": what_if_chart(result) if result and row.kind == "what-if" else None,
    }
