"""Clusters: content-addressed specs."""

from __future__ import annotations

from sqlalchemy.orm import Session

from autosbp.cluster.spec import Cluster, load_cluster
from autosbp.errors import InputError
from autosbp.service.models import ClusterRow, content_id
from autosbp.service.request_state import AppState
from autosbp.service.schemas._base import Document
from autosbp.service.schemas.clusters import PresetCluster
from autosbp.service.services._fast_reads import read_page, require_row
from autosbp.service.services._insert_once import insert_content_fast
from autosbp.service.services._list_page import ListPage
from autosbp.service.services._posted_documents import check_name, read
from autosbp.service.services._queries import Paged
from autosbp.service.services.content_ids import insert_content
from autosbp.utils.json_io import HASH_DIGITS


def create(state: AppState, body: Document) -> tuple[ClusterRow, bool]:
    """Store a spec or a preset; return the row and whether it is new."""
    if "preset" in body:
        cluster = read("preset", _preset, PresetCluster.read(body).preset)
    else:
        cluster = read("cluster", Cluster.from_dict, body)
    return insert_content_fast(state.database, _row(cluster))


def store(session: Session, cluster: Cluster) -> tuple[ClusterRow, bool]:
    """Insert the cluster unless it is stored."""
    return insert_content(session, _row(cluster))


def _preset(spec: str) -> Cluster:
    """Load a preset by its name, never a file."""
    try:
        return load_cluster(spec)
    except InputError as error:
        raise InputError(error.field.replace("cluster", "preset", 1), error.value, error.limit) from None


def _row(cluster: Cluster) -> ClusterRow:
    content_hash = cluster.content_hash
    return ClusterRow(
        id=content_id("clu", content_hash),
        name=check_name("name", cluster.name),
        cluster_hash=content_hash[:HASH_DIGITS],
        content_hash=content_hash,
        num_devices=cluster.num_devices,
        document=cluster.to_dict(),
    )


def get(state: AppState, cluster_id: str) -> ClusterRow:
    """Return a cluster, or raise 404."""
    return require_row(state.database, ClusterRow, cluster_id, "cluster")


def listing(state: AppState, window: ListPage, /, **equal: object) -> Paged[ClusterRow]:
    """Return a page of clusters."""
    return read_page(state.database, ClusterRow, window, **equal)
