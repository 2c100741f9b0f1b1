"""/v1/searches"""

from __future__ import annotations

from fastapi import Response

from service.routers._base import accepted, problems, queued, router
from service.schemas._base import Cursor, Limit, Page, PathId, QueryId
from service.schemas.jobs import Job
from service.schemas.searches import Search, SearchRequest
from service.services import searches
from service.state import StateDep

routes = router("searches")


@routes.post(
    "",
    summary="Search the best strategy of a model on a cluster",
    status_code=202,
    responses={**accepted(), **problems(413, 429)},
)
def create(state: StateDep, response: Response, request: SearchRequest) -> Job:
    """202 with the job; its ``resource`` is the search, and its result names the strategy."""
    return queued(response, searches.create(state, request))


@routes.get("", summary="List searches")
def listing(
    state: StateDep,
    model_id: QueryId = None,
    cluster_id: QueryId = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[Search]:
    """Newest first; of one model or cluster, if asked."""
    rows, following = searches.listing(state, model_id, cluster_id, limit, cursor)
    return Page(items=[Search.model_validate(row) for row in rows], next_cursor=following)


@routes.get("/{search_id}", summary="One search", responses=problems(404))
def get(state: StateDep, search_id: PathId) -> Search:
    """What was asked, the job, and the strategy once it is there."""
    return Search.model_validate(searches.get(state, search_id))
