"""Names of what rows refer to, for lists that people read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlalchemy import select

from service.models import ClusterRow, ModelRow
from service.state import State

_CHUNK = 500


def of_models(state: State, ids: Iterable[str]) -> Mapping[str, str]:
    """Models' names by their ids."""
    return _named(state, ModelRow, ids)


def of_clusters(state: State, ids: Iterable[str]) -> Mapping[str, str]:
    """Clusters' names by their ids."""
    return _named(state, ClusterRow, ids)


def _named(state: State, kind: type[ModelRow] | type[ClusterRow], ids: Iterable[str]) -> Mapping[str, str]:
    wanted = sorted(set(ids))
    found: dict[str, str] = {}
    with state.database.read() as session:
        for at in range(0, len(wanted), _CHUNK):
            part = wanted[at : at + _CHUNK]
            found |= {row.id: row.name for row in session.execute(select(kind.id, kind.name).where(kind.id.in_(part)))}
    return found
