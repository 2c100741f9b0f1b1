"""Clusters: content-addressed specs."""

from __future__ import annotations

from sqlalchemy.orm import Session

from autosbp.cluster import Cluster, load_cluster
from autosbp.errors import InputError
from service.models import ClusterRow
from service.schemas._base import Document
from service.schemas.clusters import PresetCluster
from service.services._documents import check_name, read
from service.services._once import put_once
from service.services._pictures import pictured, pictures
from service.services._store import Paged, insert_once
from service.services._window import Window
from service.state import State


def create(state: State, body: Document) -> tuple[ClusterRow, bool]:
    """Store a spec or a preset; the row, and whether it is new."""
    if "preset" in body:
        cluster = read("preset", _preset, PresetCluster.read(body).preset)
    else:
        cluster = read("cluster", Cluster.from_dict, body)
    return put_once(state.database, _row(cluster))


def store(session: Session, cluster: Cluster) -> tuple[ClusterRow, bool]:
    """Insert the cluster if it is not there."""
    return insert_once(session, _row(cluster))


def _preset(spec: str) -> Cluster:
    """A preset by its name, never a file."""
    try:
        return load_cluster(spec)
    except InputError as error:
        raise InputError(error.field.replace("cluster", "preset", 1), error.value, error.limit) from None


def _row(cluster: Cluster) -> ClusterRow:
    return ClusterRow(
        id=f"clu-{cluster.cluster_hash}",
        name=check_name("name", cluster.name),
        cluster_hash=cluster.cluster_hash,
        num_devices=cluster.num_devices,
        document=cluster.to_dict(),
    )


def get(state: State, cluster_id: str) -> ClusterRow:
    """One cluster, or 404."""
    return pictured(state.database, ClusterRow, cluster_id, "cluster")


def listing(state: State, window: Window, /, **equal: object) -> Paged[ClusterRow]:
    """A page of clusters."""
    return pictures(state.database, ClusterRow, window, **equal)
