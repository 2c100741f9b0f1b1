"""/v1/clusters"""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Response

from service.edge.conditions import tag
from service.routers._base import IDEMPOTENT, JsonBody, paged, posted, problems, router, stored
from service.schemas._base import Name, Page, PathId, WindowDep
from service.schemas.clusters import EXAMPLES, Cluster
from service.services import clusters
from service.state import StateDep

routes = router("clusters", "search")


@routes.post(
    "",
    summary="Store a cluster",
    status_code=201,
    responses={200: {"model": Cluster, "description": "It was already stored."}, **posted()},
    openapi_extra=IDEMPOTENT,
)
def create(state: StateDep, response: Response, body: Annotated[JsonBody, Body(openapi_examples=EXAMPLES)]) -> Cluster:
    """A spec in the cluster file format, or a preset."""
    row, is_new = clusters.create(state, body)
    stored(response, f"/v1/clusters/{row.id}", is_new, row.cluster_hash)
    return Cluster.model_validate(row)


@routes.get("", summary="List clusters", response_model=Page[Cluster])
def listing(state: StateDep, window: WindowDep, name: Name = None, num_devices: int | None = None) -> Response:
    """Newest first; of one name or size, if asked."""
    rows, following = clusters.listing(state, window, name=name, num_devices=num_devices)
    return paged(Cluster, rows, following)


@routes.get("/{cluster_id}", summary="One cluster", responses=problems(404))
def get(state: StateDep, response: Response, cluster_id: PathId) -> Cluster:
    """The cluster with its spec."""
    row = clusters.get(state, cluster_id)
    tag(response, row.cluster_hash)
    return Cluster.model_validate(row)
