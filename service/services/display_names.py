"""Names of referenced rows, for lists that people read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlalchemy import select

from autosbp.service.models import ClusterRow, ModelRow
from autosbp.service.request_state import AppState

_CHUNK = 500


def model_names(state: AppState, ids: Iterable[str]) -> Mapping[str, str]:
    """Names of models by id."""
    return _named(state, ModelRow, ids)


def cluster_names(state: AppState, ids: Iterable[str]) -> Mapping[str, str]:
    """Names of clusters by id."""
    return _named(state, ClusterRow, ids)


def _named(state: AppState, kind: type[ModelRow] | type[ClusterRow], ids: Iterable[str]) -> Mapping[str, str]:
    wanted = sorted(set(ids))
    found: dict[str, str] = {}
    with state.database.read() as session:
        for at in range(0, len(wanted), _CHUNK):
            part = wanted[at : at + _CHUNK]
            found |= {row.id: row.name for row in session.execute(select(kind.id, kind.name).where(kind.id.in_(part)))}
    return found
