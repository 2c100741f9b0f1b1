"""/v1/clusters"""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Query, Response

from autosbp.cluster import MAX_DEVICES
from service.edge.conditions import tag
from service.routers._base import IDEMPOTENT, JsonBody, listed, made, paged, posted, router, stored, tagged
from service.schemas._base import Name, Page, PathId, WindowDep
from service.schemas.clusters import EXAMPLES, Cluster
from service.schemas.documents import any_of
from service.services import clusters
from service.state import StateDep

routes = router("clusters", "search")


@routes.post(
    "",
    summary="Store a cluster",
    status_code=201,
    responses={**made(Cluster, "cluster_id", cluster="get /v1/clusters/{cluster_id}"), **posted()},
    openapi_extra={**IDEMPOTENT, **any_of("PresetCluster", "ClusterDocument")},
)
def create(state: StateDep, response: Response, body: Annotated[JsonBody, Body(openapi_examples=EXAMPLES)]) -> Cluster:
    """A spec in the cluster file format, or a preset."""
    row, is_new = clusters.create(state, body)
    stored(response, f"/v1/clusters/{row.id}", is_new, row.cluster_hash)
    return Cluster.model_validate(row)


@routes.get(
    "",
    summary="List clusters",
    response_model=Page[Cluster],
    responses=listed("cluster_id", cluster="get /v1/clusters/{cluster_id}"),
)
def listing(
    state: StateDep,
    window: WindowDep,
    name: Name = None,
    num_devices: Annotated[int | None, Query(ge=1, le=MAX_DEVICES)] = None,
) -> Response:
    """Newest first; of one name or size, if asked."""
    rows, following = clusters.listing(state, window, name=name, num_devices=num_devices)
    return paged(Cluster, rows, following)


@routes.get("/{cluster_id}", summary="One cluster", responses=tagged(404))
def get(state: StateDep, response: Response, cluster_id: PathId) -> Cluster:
    """The cluster with its spec."""
    row = clusters.get(state, cluster_id)
    tag(response, row.cluster_hash)
    return Cluster.model_validate(row)
