"""/v1/strategies"""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Response
from fastapi.responses import JSONResponse

from service.routers._base import problems, router
from service.schemas._base import Cursor, Document, Limit, Page, PathId, QueryId
from service.schemas.strategies import Strategy
from service.services import strategies
from service.state import StateDep

routes = router("strategies")


@routes.get("", summary="List strategies")
def listing(
    state: StateDep,
    model_id: QueryId = None,
    cluster_id: QueryId = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[Strategy]:
    """Newest first; of one model or cluster, if asked."""
    rows, following = strategies.listing(state, model_id, cluster_id, limit, cursor)
    return Page(items=[Strategy.model_validate(row) for row in rows], next_cursor=following)


@routes.get(
    "/{strategy_id}",
    summary="One strategy: the whole plan",
    response_model=Document,
    responses={304: {"description": "The plan that the client has is this one."}, **problems(404)},
)
def get(state: StateDep, strategy_id: PathId, if_none_match: Annotated[str | None, Header()] = None) -> Response:
    """The plan as ``autosbp plan --json`` gives it, with strategy, provenance and baselines; its id is the ETag."""
    etag = f'"{strategy_id}"'
    row = strategies.get(state, strategy_id)
    known = {tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")}
    if etag in known or "*" in known:
        return Response(status_code=304, headers={"etag": etag})
    return JSONResponse(row.plan, headers={"etag": etag})
