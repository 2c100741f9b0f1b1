"""Storing what has its content's id, where nothing else is stored with it: one statement, which is a transaction of its own."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeVar

from sqlalchemy import Insert, bindparam
from sqlalchemy.dialects import postgresql, sqlite

from service.db import Database
from service.models import Base, bound, now, table_of
from service.services._pictures import picture
from service.tenancy import PARAMETER

Row = TypeVar("Row", bound=Base)


def put_once(database: Database, row: Row) -> tuple[Row, bool]:
    """``row``, which is new, or a picture of the stored one of that id; and whether this call stored it. As
    ``_store.insert_once``, safe against a concurrent insert of the same."""
    kind = type(row)
    row.created_at = now()
    names = [each.name for each in table_of(kind).c if each.name != "tenant"]
    values: dict[str, object] = {f"new_{name}": getattr(row, name) for name in names}
    while not database.execute((_inserting(kind, database.is_embedded), values)):
        if (stored := picture(database, kind, row.id)) is not None:
            return stored, False
    return row, True


@lru_cache(maxsize=64)
def _inserting(kind: type[Base], embedded: bool) -> Insert:
    table = table_of(kind)
    values = {**bound(table, "new_"), "tenant": bindparam(PARAMETER)}
    insert = sqlite.insert(table) if embedded else postgresql.insert(table)
    return insert.values(values).on_conflict_do_nothing(index_elements=[table.c.id, table.c.tenant])
