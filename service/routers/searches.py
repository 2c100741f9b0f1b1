"""/v1/searches"""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Query, Response

from service.edge.conditions import tag
from service.routers._base import IDEMPOTENT, accepted, answered, listed, paged, posted, queued, reused, router, tagged
from service.schemas._base import Page, PathId, QueryId, WindowDep
from service.schemas.jobs import Job, JobState
from service.schemas.searches import Search, SearchRequest
from service.services import searches
from service.state import StateDep

routes = router("searches", "search")
CacheControl = Annotated[
    str | None, Header(max_length=200, description="``no-cache`` searches again where an equal search is stored.")
]


@routes.post(
    "",
    summary="Search the best strategy of a model on a cluster",
    status_code=202,
    responses={**accepted(), **reused(), **posted()},
    openapi_extra=IDEMPOTENT,
)
def create(state: StateDep, response: Response, request: SearchRequest, cache_control: CacheControl = None) -> Job:
    """202 with the job; its ``resource`` is the search, and its result names the strategy. A search of the same model,
    cluster, calibration and options, by the same release, is answered at once with 200 and the job that found the stored
    strategy; one that is under way is joined."""
    fresh = "no-cache" in (cache_control or "").lower()
    job, is_new = searches.create(state, request, fresh=fresh)
    if is_new:
        return queued(response, job)
    state.metrics.reused.labels("equal-search").inc()
    return answered(response, job)


@routes.get(
    "",
    summary="List searches",
    response_model=Page[Search],
    responses=listed("search_id", search="get /v1/searches/{search_id}"),
)
def listing(
    state: StateDep,
    window: WindowDep,
    model_id: QueryId = None,
    cluster_id: QueryId = None,
    calibration_id: QueryId = None,
    strategy_id: QueryId = None,
    job_state: Annotated[JobState | None, Query(alias="state")] = None,
) -> Response:
    """Newest first; of one model, cluster, calibration, strategy, or state of their job, if asked."""
    rows, following = searches.listing(
        state,
        window,
        job_state,
        model_id=model_id,
        cluster_id=cluster_id,
        calibration_id=calibration_id,
        strategy_id=strategy_id,
    )
    return paged(Search, rows, following)


@routes.get("/{search_id}", summary="One search", responses=tagged(404))
def get(state: StateDep, response: Response, search_id: PathId) -> Search:
    """What was asked, the job, and the strategy once it is there."""
    row = searches.get(state, search_id)
    tag(response, row.id, row.job.revision)
    return Search.model_validate(row)
