"""/v1/strategies"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Header, Query, Response

from service.edge.conditions import etag, is_known, tag
from service.edge.route import slow
from service.routers._base import (
    IDEMPOTENT,
    accepted,
    answered,
    listed,
    paged,
    posted,
    queued,
    reused,
    router,
    tagged,
)
from service.schemas._base import NO_NUL, Document, Page, PathId, QueryId, WindowDep
from service.schemas.analyses import Export, WhatIfRequest, WhyRequest
from service.schemas.jobs import Job
from service.schemas.strategies import Strategy
from service.services import analyses, strategies
from service.state import State, StateDep

routes = router("strategies", "search")
Target = Literal["deepspeed", "dtensor", "megatron", "perfetto", "torchtitan"]
BaselineName = Annotated[
    str | None, Query(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$", description="A baseline of the strategy instead.")
]
_IDS = ("strategy_id", "other_id")
_LINKS = {
    "strategy": "get /v1/strategies/{strategy_id}",
    "diff": "get /v1/strategies/{strategy_id}/diff/{other_id}",
    "export": "get /v1/strategies/{strategy_id}/exports/{target}",
    "why": "post /v1/strategies/{strategy_id}/why",
    "what-if": "post /v1/strategies/{strategy_id}/what-if",
}


@routes.get("", summary="List strategies", response_model=Page[Strategy], responses=listed(*_IDS, **_LINKS))
def listing(
    state: StateDep,
    window: WindowDep,
    model_id: QueryId = None,
    cluster_id: QueryId = None,
    calibration_id: QueryId = None,
    searcher: Annotated[str | None, Query(max_length=64, pattern=NO_NUL)] = None,
) -> Response:
    """Newest first; of one model, cluster, calibration or searcher, if asked."""
    rows, following = strategies.listing(
        state,
        window,
        model_id=model_id,
        cluster_id=cluster_id,
        calibration_id=calibration_id,
        searcher=searcher,
    )
    return paged(Strategy, rows, following)


@routes.get(
    "/{strategy_id}",
    summary="One strategy: the whole plan",
    response_model=Document,
    responses=tagged(404),
)
def get(
    state: StateDep, strategy_id: PathId, if_none_match: Annotated[str | None, Header(include_in_schema=False)] = None
) -> Response:
    """The plan as ``autosbp plan --json`` of the release that found it gave it, with strategy, provenance and baselines; its
    id is the ETag."""
    known = is_known(if_none_match, etag(strategy_id))
    response = Response(None if known else strategies.text(state, strategy_id), media_type="application/json")
    if known:
        strategies.require_stored(state, strategy_id)
    tag(response, strategy_id)
    return response


@routes.get("/{strategy_id}/diff/{other_id}", summary="Two strategies side by side", responses=tagged(404))
@slow
def diff(state: StateDep, response: Response, strategy_id: PathId, other_id: PathId) -> Document:
    """What the second does otherwise: costs, batches, mesh, and every layout that differs."""
    tag(response, strategy_id, other_id)
    return strategies.compare(state, strategy_id, other_id)


@routes.get("/{strategy_id}/exports/{target}", summary="A strategy for another tool", responses=tagged(404))
@slow
def export(
    state: StateDep, response: Response, strategy_id: PathId, target: Target, baseline: BaselineName = None
) -> Export:
    """The files of the tool, or a Perfetto trace of the predicted step. What the tool cannot express is refused by name
    (422), never approximated."""
    files = strategies.export(state, strategy_id, target, baseline)
    tag(response, strategy_id, target, baseline or "")
    return Export(plan_id=strategy_id, target=target, files=files)


@routes.post(
    "/{strategy_id}/why",
    summary="Ask why an op has its layout",
    status_code=202,
    responses={**accepted(), **reused(), **posted(404)},
    openapi_extra=IDEMPOTENT,
)
def why(state: StateDep, response: Response, strategy_id: PathId, request: WhyRequest) -> Job:
    """What each other layout of the op would cost, all else chosen anew. 202 with the job, whose result names the analysis;
    200 where the same was asked before."""
    return _ask(state, response, strategy_id, "why", request.model_dump())


@routes.post(
    "/{strategy_id}/what-if",
    summary="Ask what better hardware would buy",
    status_code=202,
    responses={**accepted(), **reused(), **posted(404)},
    openapi_extra=IDEMPOTENT,
)
def what_if(state: StateDep, response: Response, strategy_id: PathId, request: WhatIfRequest) -> Job:
    """The step with each link, the device, or its memory so many times better, searched again. 202 with the job, whose
    result names the analysis; 200 where the same was asked before."""
    return _ask(state, response, strategy_id, "what-if", request.model_dump())


def _ask(state: State, response: Response, strategy_id: str, kind: str, options: Document) -> Job:
    job, is_new = analyses.create(state, strategy_id, kind, options)
    if is_new:
        return queued(response, job)
    state.metrics.reused.labels("equal-analysis").inc()
    return answered(response, job)
