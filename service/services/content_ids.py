"""Content-addressed rows: ids are prefixes of content hashes, and the full hashes are compared.

Equal ids do not prove equal contents: 64-bit hashes, which plans and calibrations have in their documents and all ids
had in earlier releases, can be made to collide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, undefer

from autosbp import api
from autosbp.cluster.spec import Cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.errors import AutosbpError
from autosbp.plan.plan import content_hash_of
from autosbp.service.models import ID_DIGITS, Base, CalibrationRow, ClusterRow, ModelRow, StrategyRow
from autosbp.service.problem_details import ProblemError
from autosbp.service.tenancy import tenant_of
from autosbp.utils.json_io import HASH_DIGITS

Row = TypeVar("Row", bound=Base)
CheckQuota = Callable[[Session], None]
_HASHES: Mapping[type[Base], Callable[[Any], str]] = {
    ModelRow: lambda row: api.load_graph(row.document).content_hash,
    ClusterRow: lambda row: Cluster.from_dict(row.document).content_hash,
    CalibrationRow: lambda row: Calibration.from_dict(row.document).content_hash,
    StrategyRow: lambda row: content_hash_of(row.plan),
}


def find_same_content(session: Session, row: Row) -> Row | None:
    """Return the row with the same content, under its id or the id of an earlier release; None if there is none.

    Raises ``ProblemError`` 409 if other content has the id.
    """
    kind: Any = type(row)
    content = kind.document if hasattr(kind, "document") else kind.plan
    for identifier in _ids(row.id):
        query = select(kind).where(kind.id == identifier, kind.tenant == tenant_of(session))
        found: Any = session.scalar(query.options(undefer(kind.content_hash)))
        if found is None:
            continue
        if found.content_hash is None:
            session.refresh(found, [content.key])
        if _hash_of(found) in (None, row.content_hash):  # type: ignore[attr-defined]
            return found  # type: ignore[no-any-return]
        if identifier == row.id:
            raise collision(row.id)
    return None


def insert_content(session: Session, row: Row, room: CheckQuota | None = None) -> tuple[Row, bool]:
    """Insert a row unless its content is stored; safe against concurrent inserts of the same content.

    Args:
        session: a writing session.
        row: the new row.
        room: may refuse new content by raising.

    Returns:
        The row or the stored one, and whether this call stored it.

    Raises:
        ProblemError: 409 if other content has the id.
    """
    if (known := find_same_content(session, row)) is not None:
        return known, False
    if room is not None:
        room(session)
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        if (known := find_same_content(session, row)) is None:
            raise
        return known, False
    return row, True


def _ids(identifier: str) -> Iterator[str]:
    yield identifier
    prefix, _, digits = identifier.rpartition("-")
    if len(digits) == ID_DIGITS:
        yield f"{prefix}-{digits[:HASH_DIGITS]}"


def _hash_of(row: Any) -> str | None:
    """Full content hash, computed for rows of earlier releases; None if this release reads the content differently."""
    if row.content_hash is not None:
        return str(row.content_hash)
    try:
        found = _HASHES[type(row)](row)
    except AutosbpError:
        return None
    return found if found.startswith(row.id.rpartition("-")[2]) else None


def collision(identifier: str) -> ProblemError:
    """409: the id belongs to other content."""
    detail = f"{identifier} is already the id of other content, whose hash has the same prefix"
    return ProblemError(409, "id-collision", "Id collision", detail, id=identifier)
