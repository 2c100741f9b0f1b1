"""Insertion of content-addressed rows in a single statement, for rows that are stored alone."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeVar

from sqlalchemy import Insert, bindparam
from sqlalchemy.dialects import postgresql, sqlite

from autosbp.service.db import Database
from autosbp.service.models import Base, bind_parameters, now, table_of
from autosbp.service.services.content_ids import CheckQuota, find_same_content
from autosbp.service.tenancy import TENANT_PARAMETER

Row = TypeVar("Row", bound=Base)


def insert_content_fast(database: Database, row: Row, room: CheckQuota | None = None) -> tuple[Row, bool]:
    """Insert a row unless its content is stored; safe against concurrent inserts of the same content.

    See ``autosbp.service.services.content_ids.insert_content``.

    Args:
        database: a tenant's view.
        row: the new row.
        room: may refuse new content by raising.

    Returns:
        The row or the stored one, and whether this call stored it.
    """
    kind = type(row)
    with database.read() as session:
        if (known := find_same_content(session, row)) is not None:
            return known, False
        if room is not None:
            room(session)
    row.created_at = now()
    names = [each.name for each in table_of(kind).c if each.name != "tenant"]
    values: dict[str, object] = {f"new_{name}": getattr(row, name) for name in names}
    while not database.execute((_insert_statement(kind, database.is_sqlite), values)):
        with database.read() as session:
            if (known := find_same_content(session, row)) is not None:
                return known, False
    return row, True


@lru_cache(maxsize=64)
def _insert_statement(kind: type[Base], embedded: bool) -> Insert:
    table = table_of(kind)
    values = {**bind_parameters(table, "new_"), "tenant": bindparam(TENANT_PARAMETER)}
    insert = sqlite.insert(table) if embedded else postgresql.insert(table)
    return insert.values(values).on_conflict_do_nothing(index_elements=[table.c.id, table.c.tenant])
