"""/v1/clusters"""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Response

from service.routers._base import JsonBody, problems, router, stored
from service.schemas._base import Cursor, Limit, Page, PathId
from service.schemas.clusters import EXAMPLES, Cluster
from service.services import clusters
from service.state import StateDep

routes = router("clusters")


@routes.post(
    "",
    summary="Store a cluster",
    status_code=201,
    responses={200: {"model": Cluster, "description": "It was already stored."}, **problems(413)},
)
def create(state: StateDep, response: Response, body: Annotated[JsonBody, Body(openapi_examples=EXAMPLES)]) -> Cluster:
    """A spec in the cluster file format, or a preset."""
    row, is_new = clusters.create(state, body)
    stored(response, f"/v1/clusters/{row.id}", is_new)
    return Cluster.model_validate(row)


@routes.get("", summary="List clusters")
def listing(state: StateDep, limit: Limit = 50, cursor: Cursor = None) -> Page[Cluster]:
    """Newest first."""
    rows, following = clusters.listing(state, limit, cursor)
    return Page(items=[Cluster.model_validate(row) for row in rows], next_cursor=following)


@routes.get("/{cluster_id}", summary="One cluster", responses=problems(404))
def get(state: StateDep, cluster_id: PathId) -> Cluster:
    """The cluster with its spec."""
    return Cluster.model_validate(clusters.get(state, cluster_id))
