"""Routes of /v1/searches: start, list, read and delete searches."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Query, Response

from autosbp.service.http.api_route import in_thread, max_body
from autosbp.service.http.etags import IfMatch, check_if_match, etag, set_etag
from autosbp.service.models import SearchRow
from autosbp.service.request_state import StateDep
from autosbp.service.routers._base import (
    IDEMPOTENT,
    Cascade,
    documented_delete_problems,
    documented_equal_request,
    documented_etag,
    documented_job,
    documented_list,
    documented_post_problems,
    documented_problems,
    respond_with_earlier_job,
    respond_with_page,
    respond_with_queued_job,
    router,
)
from autosbp.service.schemas._base import Document, Page, PathId, QueryId, WindowDep
from autosbp.service.schemas.jobs import Job, JobState
from autosbp.service.schemas.searches import Search, SearchRequest
from autosbp.service.services import deletion, searches
from autosbp.tuning.charts import search_charts

routes = router("searches", "search")
SVG = "image/svg+xml"
CacheControl = Annotated[
    str | None,
    Header(max_length=200, description=("``no-cache`` searches again even if an identical search is stored.")),
]


@routes.post(
    "",
    summary="Search for the best strategy of a model on a cluster",
    status_code=202,
    responses={**documented_job(), **documented_equal_request(), **documented_post_problems()},
    openapi_extra=IDEMPOTENT,
)
@max_body(2**20)
def create_search(
    state: StateDep, response: Response, request: SearchRequest, cache_control: CacheControl = None
) -> Job:
    """Queues a search. Answers 202 with the job; its ``resource`` is the search, its result has the strategy's id.

    If this release has already answered a search of the same model, cluster, calibration and options, the answer is 200
    with the job of that search. An equal search that is still running is joined.
    """
    fresh = "no-cache" in (cache_control or "").lower()
    job, is_new = searches.create(state, request, fresh=fresh)
    if is_new:
        return respond_with_queued_job(response, job)
    state.metrics.reused.labels("equal-search").inc()
    return respond_with_earlier_job(response, job)


@routes.get(
    "",
    summary="List searches",
    response_model=Page[Search],
    responses=documented_list("search_id", search="get /v1/searches/{search_id}"),
)
def list_searches(
    state: StateDep,
    window: WindowDep,
    model_id: QueryId = None,
    cluster_id: QueryId = None,
    calibration_id: QueryId = None,
    strategy_id: QueryId = None,
    job_state: Annotated[JobState | None, Query(alias="state")] = None,
) -> Response:
    """Lists searches, newest first. Optionally of one model, cluster, calibration, strategy, or state of their job."""
    rows, following = searches.listing(
        state,
        window,
        job_state,
        model_id=model_id,
        cluster_id=cluster_id,
        calibration_id=calibration_id,
        strategy_id=strategy_id,
    )
    return respond_with_page(Search, rows, following)


@routes.get("/{search_id}", summary="One search", responses=documented_etag(404))
def get_search(state: StateDep, response: Response, search_id: PathId) -> Search:
    """Returns the request, the job, and the strategy's id once the job has succeeded."""
    row = searches.get(state, search_id)
    set_etag(response, row.id, row.job.revision)
    return Search.model_validate(row)


@routes.get("/{search_id}/tuning", summary="Trials of a search", responses=documented_etag(404))
@in_thread
def get_tuning(state: StateDep, response: Response, search_id: PathId) -> Document:
    """Returns what the trials of a search with mode ``tune`` show, also while it runs.

    The best strategy and the best baseline, the best step time and the hit rate by trials, ranking accuracy by phase, and
    every trial with its choices, predicted and measured step time, or error.
    """
    summary = searches.tuning_summary(state, search_id)
    set_etag(response, search_id, "tuning", len(summary["trials"]), summary["stopped"])
    return summary


@routes.get(
    "/{search_id}/tuning/charts",
    summary="Pictures of a search's trials",
    response_class=Response,
    responses={
        **documented_problems(404),
        200: {"content": {SVG: {"schema": {"type": "string"}}}, "description": "An SVG."},
    },
)
@in_thread
def draw_tuning(state: StateDep, search_id: PathId) -> Response:
    """Returns best so far, hit rate and ranking accuracy as one SVG."""
    return Response(search_charts(searches.tuning_summary(state, search_id)), media_type=SVG)


@routes.delete("/{search_id}", summary="Delete a search", status_code=204, responses=documented_delete_problems())
def delete_search(state: StateDep, search_id: PathId, cascade: Cascade = False, if_match: IfMatch = None) -> None:
    """Deletes the search with its job, which must have ended; the strategies it found stay."""
    deletion.remove(
        state,
        SearchRow,
        search_id,
        "search",
        lambda row: check_if_match(if_match, etag(row.id, row.job.revision)),
        cascade=cascade,
    )
