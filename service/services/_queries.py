"""Database operations of all resources: insert once, look up, page."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, select, tuple_
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.orm.interfaces import ORMOption

from autosbp.errors import InputError
from autosbp.service.models import ID_DIGITS, Base
from autosbp.service.problem_details import not_found
from autosbp.service.services._list_page import CURSOR_PATTERN, ListPage
from autosbp.service.tenancy import tenant_of

Row = TypeVar("Row", bound=Base)
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


def new_id(prefix: str) -> str:
    """Create a random id."""
    return f"{prefix}-{secrets.token_hex(ID_DIGITS // 2)}"


def find(session: Session, kind: type[Row], identifier: str, *options: ORMOption, lock: bool = False) -> Row | None:
    """The row of the session's tenant, or None."""
    return session.get(kind, (identifier, tenant_of(session)), options=options, with_for_update=lock or None)


def existing(session: Session, kind: type[Row], identifier: str, *, lock: bool = False) -> Row:
    """A row of the session's tenant that must exist."""
    return session.get_one(kind, (identifier, tenant_of(session)), with_for_update=lock or None)


def insert_if_absent(session: Session, row: Row) -> tuple[Row, bool]:
    """Insert a row unless its id is stored, safely under concurrency; return the row and whether this call stored it."""
    kind = type(row)
    if (stored := find(session, kind, row.id)) is not None:
        return stored, False
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        if (stored := find(session, kind, row.id)) is None:
            raise
        return stored, False
    return row, True


def require(
    session: Session, kind: type[Row], identifier: str, what: str, *options: ORMOption, lock: bool = False
) -> Row:
    """Return the row that a path names; raise 404 if there is none."""
    row = find(session, kind, identifier, *options, lock=lock)
    if row is None:
        raise not_found(what, identifier)
    return row


def require_referenced(session: Session, kind: type[Row], identifier: str, field: str, what: str) -> Row:
    """Return the row that a body's member names; raise ``InputError`` if there is none."""
    row = find(session, kind, identifier)
    if row is None:
        raise InputError(field, identifier, f"expected the id of a stored {what}")
    return row


Paged = tuple[Sequence[Row], str | None]


def page(
    session: Session, kind: type[Row], window: ListPage, where: Sequence[ColumnElement[bool]] = (), /, **equal: object
) -> Paged[Row]:
    """Return the window's rows, newest first, and the next page's cursor; None in ``equal`` filters nothing."""
    query: Select[Any] = select(kind).where(*where)
    for name, value in equal.items():
        if value is not None:
            query = query.where(getattr(kind, name) == value)
    if window.after is not None:
        query = query.where(kind.created_at >= window.after)
    if window.before is not None:
        query = query.where(kind.created_at < window.before)
    if window.cursor is not None:
        query = query.where(tuple_(kind.created_at, kind.id) < tuple_(*decode(window.cursor)))
    query = query.order_by(kind.created_at.desc(), kind.id.desc()).limit(window.limit + 1)
    rows: Sequence[Row] = session.scalars(query).all()
    return rows[: window.limit], encode(rows[window.limit - 1]) if len(rows) > window.limit else None


def encode(row: Base) -> str:
    """Cursor of the position after a row."""
    return f"{(row.created_at - _EPOCH) // _MICROSECOND:016d}.{row.id}"


def decode(cursor: str) -> tuple[datetime, str]:
    """Position that a cursor names; raise ``InputError`` if it is malformed."""
    if re.fullmatch(CURSOR_PATTERN, cursor, re.ASCII) is None:
        raise InputError("cursor", cursor, "expected the next_cursor of a previous page")
    stamp, _, identifier = cursor.partition(".")
    return _EPOCH + int(stamp) * _MICROSECOND, identifier
