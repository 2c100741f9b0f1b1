"""Routes of /v1/clusters: store, list, read and delete clusters."""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Query, Response

from autosbp.cluster.spec import MAX_DEVICES
from autosbp.service.http.api_route import max_body
from autosbp.service.http.etags import IfMatch, check_if_match, etag, set_etag
from autosbp.service.models import ClusterRow
from autosbp.service.request_state import StateDep
from autosbp.service.routers._base import (
    IDEMPOTENT,
    Cascade,
    JsonBody,
    documented_creation,
    documented_delete_problems,
    documented_etag,
    documented_list,
    documented_post_problems,
    respond_with_page,
    respond_with_stored,
    router,
)
from autosbp.service.schemas._base import Name, Page, PathId, WindowDep
from autosbp.service.schemas.clusters import EXAMPLES, Cluster
from autosbp.service.schemas.documents import any_of
from autosbp.service.services import clusters, deletion

routes = router("clusters", "search")


@routes.post(
    "",
    summary="Store a cluster",
    status_code=201,
    responses={
        **documented_creation(Cluster, "cluster_id", cluster="get /v1/clusters/{cluster_id}"),
        **documented_post_problems(),
    },
    openapi_extra={**IDEMPOTENT, **any_of("PresetCluster", "ClusterDocument")},
)
@max_body(2**20)
def create_cluster(
    state: StateDep, response: Response, body: Annotated[JsonBody, Body(openapi_examples=EXAMPLES)]
) -> Cluster:
    """Stores a spec in the cluster file format, or a preset. Answers 201, or 200 if the cluster is already stored."""
    row, is_new = clusters.create(state, body)
    respond_with_stored(response, f"/v1/clusters/{row.id}", is_new, row.cluster_hash)
    return Cluster.model_validate(row)


@routes.get(
    "",
    summary="List clusters",
    response_model=Page[Cluster],
    responses=documented_list("cluster_id", cluster="get /v1/clusters/{cluster_id}"),
)
def list_clusters(
    state: StateDep,
    window: WindowDep,
    name: Name = None,
    num_devices: Annotated[int | None, Query(ge=1, le=MAX_DEVICES)] = None,
) -> Response:
    """Lists clusters, newest first, optionally of one name or number of devices."""
    rows, following = clusters.listing(state, window, name=name, num_devices=num_devices)
    return respond_with_page(Cluster, rows, following)


@routes.get("/{cluster_id}", summary="One cluster", responses=documented_etag(404))
def get_cluster(state: StateDep, response: Response, cluster_id: PathId) -> Cluster:
    """Returns the cluster with its spec."""
    row = clusters.get(state, cluster_id)
    set_etag(response, row.cluster_hash)
    return Cluster.model_validate(row)


@routes.delete("/{cluster_id}", summary="Delete a cluster", status_code=204, responses=documented_delete_problems())
def delete_cluster(state: StateDep, cluster_id: PathId, cascade: Cascade = False, if_match: IfMatch = None) -> None:
    """Deletes the cluster.

    Answers 409 while calibrations, searches or strategies refer to it; ``cascade`` deletes them as well, which needs
    the scopes of all of them.
    """
    deletion.remove(
        state,
        ClusterRow,
        cluster_id,
        "cluster",
        lambda row: check_if_match(if_match, etag(row.cluster_hash)),
        cascade=cascade,
    )
