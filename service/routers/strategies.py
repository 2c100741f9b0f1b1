"""Routes of /v1/strategies: list, read, compare, export, analyse and delete strategies."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Header, Query, Response

from autosbp.service.http.api_route import in_thread
from autosbp.service.http.etags import IfMatch, check_if_match, etag, matches_if_none_match, set_etag
from autosbp.service.models import StrategyRow
from autosbp.service.request_state import AppState, StateDep
from autosbp.service.routers._base import (
    IDEMPOTENT,
    Cascade,
    documented_delete_problems,
    documented_equal_request,
    documented_etag,
    documented_job,
    documented_list,
    documented_post_problems,
    respond_with_earlier_job,
    respond_with_page,
    respond_with_queued_job,
    router,
)
from autosbp.service.schemas._base import NO_NUL, Document, Page, PathId, QueryId, WindowDep
from autosbp.service.schemas.analyses import Export, WhatIfRequest, WhyRequest
from autosbp.service.schemas.jobs import Job
from autosbp.service.schemas.strategies import Strategy
from autosbp.service.services import analyses, deletion, strategies

routes = router("strategies", "search")
Target = Literal["deepspeed", "dtensor", "megatron", "perfetto", "torchtitan"]
BaselineName = Annotated[
    str | None,
    Query(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$", description=("Export this baseline of the strategy instead.")),
]
_IDS = ("strategy_id", "other_id")
_LINKS = {
    "strategy": "get /v1/strategies/{strategy_id}",
    "diff": "get /v1/strategies/{strategy_id}/diff/{other_id}",
    "export": "get /v1/strategies/{strategy_id}/exports/{target}",
    "why": "post /v1/strategies/{strategy_id}/why",
    "what-if": "post /v1/strategies/{strategy_id}/what-if",
}


@routes.get("", summary="List strategies", response_model=Page[Strategy], responses=documented_list(*_IDS, **_LINKS))
def list_strategies(
    state: StateDep,
    window: WindowDep,
    model_id: QueryId = None,
    cluster_id: QueryId = None,
    calibration_id: QueryId = None,
    searcher: Annotated[str | None, Query(max_length=64, pattern=NO_NUL)] = None,
) -> Response:
    """Lists strategies, newest first, optionally of one model, cluster, calibration or searcher."""
    rows, following = strategies.listing(
        state,
        window,
        model_id=model_id,
        cluster_id=cluster_id,
        calibration_id=calibration_id,
        searcher=searcher,
    )
    return respond_with_page(Strategy, rows, following)


@routes.get(
    "/{strategy_id}",
    summary="One strategy: the complete plan",
    response_model=Document,
    responses=documented_etag(404),
)
def get_strategy(
    state: StateDep, strategy_id: PathId, if_none_match: Annotated[str | None, Header(include_in_schema=False)] = None
) -> Response:
    """Returns the complete plan, with strategy, provenance and baselines.

    It is what ``autosbp plan --json`` of the release that found it printed; its id is the ETag.
    """
    known = matches_if_none_match(if_none_match, etag(strategy_id))
    response = Response(None if known else strategies.text(state, strategy_id), media_type="application/json")
    if known:
        strategies.require_stored(state, strategy_id)
    set_etag(response, strategy_id)
    return response


@routes.get("/{strategy_id}/diff/{other_id}", summary="Compare two strategies", responses=documented_etag(404))
@in_thread
def diff_strategies(state: StateDep, response: Response, strategy_id: PathId, other_id: PathId) -> Document:
    """Returns the differences of the second strategy: costs, batches, mesh, and every different layout."""
    set_etag(response, strategy_id, other_id)
    return strategies.compare(state, strategy_id, other_id)


@routes.get(
    "/{strategy_id}/exports/{target}", summary="Export a strategy for another tool", responses=documented_etag(404)
)
@in_thread
def export_strategy(
    state: StateDep, response: Response, strategy_id: PathId, target: Target, baseline: BaselineName = None
) -> Export:
    """Returns the tool's files, or a Perfetto trace of the predicted step.

    What the tool cannot express is refused by name (422), never approximated.
    """
    files = strategies.export(state, strategy_id, target, baseline)
    set_etag(response, strategy_id, target, baseline or "")
    return Export(plan_id=strategy_id, target=target, files=files)


@routes.post(
    "/{strategy_id}/why",
    summary="Ask why an op has its layout",
    status_code=202,
    responses={**documented_job(), **documented_equal_request(), **documented_post_problems(404)},
    openapi_extra=IDEMPOTENT,
)
def ask_why(state: StateDep, response: Response, strategy_id: PathId, request: WhyRequest) -> Job:
    """Queues the cost of every other layout of the op, with the rest of the strategy optimized again.

    Answers 202 with the job, whose result has the analysis' id; 200 if an identical request was answered before.
    """
    return _ask(state, response, strategy_id, "why", request.model_dump())


@routes.post(
    "/{strategy_id}/what-if",
    summary="Ask how much faster better hardware would be",
    status_code=202,
    responses={**documented_job(), **documented_equal_request(), **documented_post_problems(404)},
    openapi_extra=IDEMPOTENT,
)
def ask_what_if(state: StateDep, response: Response, strategy_id: PathId, request: WhatIfRequest) -> Job:
    """Queues searches with each link, the device, or its memory better by ``factor``.

    Answers 202 with the job, whose result has the analysis' id; 200 if an identical request was answered before.
    """
    return _ask(state, response, strategy_id, "what-if", request.model_dump())


def _ask(state: AppState, response: Response, strategy_id: str, kind: str, options: Document) -> Job:
    job, is_new = analyses.create(state, strategy_id, kind, options)
    if is_new:
        return respond_with_queued_job(response, job)
    state.metrics.reused.labels("equal-analysis").inc()
    return respond_with_earlier_job(response, job)


@routes.delete("/{strategy_id}", summary="Delete a strategy", status_code=204, responses=documented_delete_problems())
def delete_strategy(state: StateDep, strategy_id: PathId, cascade: Cascade = False, if_match: IfMatch = None) -> None:
    """Deletes the strategy.

    Answers 409 while searches, analyses or trials refer to it; ``cascade`` deletes them and the trials' files as well.
    """
    deletion.remove(
        state, StrategyRow, strategy_id, "strategy", lambda row: check_if_match(if_match, etag(row.id)), cascade=cascade
    )
