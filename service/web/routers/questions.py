"""/questions: why an op has its layout, and what better hardware would buy."""

from __future__ import annotations

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from service.edge.route import slow
from service.jobs._base import FINAL
from service.schemas._base import Document, PathId
from service.schemas.analyses import WhatIfRequest, WhyRequest
from service.services import analyses, clusters, models, strategies
from service.state import State, StateDep
from service.web.forms import FormDep
from service.web.presenters.lists import job_line
from service.web.presenters.question import what_if_chart, why_answers
from service.web.rendering import render, render_part
from service.web.route import pages

routes = pages("search")


@routes.post("/strategies/{strategy_id}/why")
def why(state: StateDep, strategy_id: PathId, form: FormDep) -> Response:
    """Ask about an op; an equal question has one answer."""
    return _ask(state, strategy_id, "why", WhyRequest.read({"op": form.text("op") or ""}).model_dump())


@routes.post("/strategies/{strategy_id}/what-if")
def what_if(state: StateDep, strategy_id: PathId, form: FormDep) -> Response:
    """Ask about hardware that is so many times better."""
    factor = form.number("factor")
    body = {} if factor is None else {"factor": factor}
    return _ask(state, strategy_id, "what-if", WhatIfRequest.read(body).model_dump())


@routes.get("/questions/{analysis_id}")
@slow
def question(request: Request, state: StateDep, analysis_id: PathId) -> Response:
    """The question, and the answer once it is there."""
    return render(request, "question.html", **_shown(state, analysis_id))


@routes.get("/questions/{analysis_id}/answer")
@slow
def answer(request: Request, state: StateDep, analysis_id: PathId) -> Response:
    """The part of the page that changes."""
    return render_part(request, "answer.html", "Answer", f"/questions/{analysis_id}", **_shown(state, analysis_id))


def _ask(state: State, strategy_id: str, kind: str, options: Document) -> Response:
    job, _ = analyses.create(state, strategy_id, kind, options)
    return RedirectResponse(f"/questions/{job.payload['analysis_id']}", 303)


def _shown(state: State, analysis_id: str) -> Document:
    row = analyses.get(state, analysis_id)
    strategy = strategies.get(state, row.strategy_id)
    model, cluster = models.get(state, strategy.model_id).name, clusters.get(state, strategy.cluster_id).name
    result = row.result
    return {
        "row": row,
        "strategy_name": f"{model} on {cluster}",
        "line": job_line(row.job),
        "ended": row.job.state in FINAL,
        "axes": [name for name, *_ in strategy.plan["strategy"]["mesh"]["axes"]],
        "answers": why_answers(result) if result and row.kind == "why" else (),
        "chart": what_if_chart(result) if result and row.kind == "what-if" else None,
    }
