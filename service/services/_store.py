"""What every resource does with the database: insert once, look up, page."""

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
from service.models import Base
from service.problems import not_found
from service.services._window import CURSOR_PATTERN, Window
from service.tenancy import tenant_of

Row = TypeVar("Row", bound=Base)
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


def new_id(prefix: str) -> str:
    """A fresh random id."""
    return f"{prefix}-{secrets.token_hex(8)}"


def find(session: Session, kind: type[Row], identifier: str, *options: ORMOption) -> Row | None:
    """The row of the session's tenant, or None."""
    return session.get(kind, (identifier, tenant_of(session)), options=options)


def existing(session: Session, kind: type[Row], identifier: str, *, lock: bool = False) -> Row:
    """A row of the session's tenant that is known to be there."""
    return session.get_one(kind, (identifier, tenant_of(session)), with_for_update=lock or None)


def insert_once(session: Session, row: Row) -> tuple[Row, bool]:
    """The stored row of that id, and whether this call stored it; safe against a concurrent insert of the same."""
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


def require(session: Session, kind: type[Row], identifier: str, what: str, *options: ORMOption) -> Row:
    """The row that a path names, or 404."""
    row = find(session, kind, identifier, *options)
    if row is None:
        raise not_found(what, identifier)
    return row


def referred(session: Session, kind: type[Row], identifier: str, field: str, what: str) -> Row:
    """The row that a member of a body names, or ``InputError``."""
    row = find(session, kind, identifier)
    if row is None:
        raise InputError(field, identifier, f"the id of a stored {what} is expected")
    return row


Paged = tuple[Sequence[Row], str | None]


def page(
    session: Session, kind: type[Row], window: Window, where: Sequence[ColumnElement[bool]] = (), /, **equal: object
) -> Paged[Row]:
    """The window's rows, newest first, and the cursor of the next page. Columns in ``equal`` that are None are not
    asked for."""
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
    """The cursor of the place behind a row."""
    return f"{(row.created_at - _EPOCH) // _MICROSECOND:016d}.{row.id}"


def decode(cursor: str) -> tuple[datetime, str]:
    """The place that a cursor names; ``InputError``."""
    if re.fullmatch(CURSOR_PATTERN, cursor, re.ASCII) is None:
        raise InputError("cursor", cursor, "the next_cursor of an earlier page is expected")
    stamp, _, identifier = cursor.partition(".")
    return _EPOCH + int(stamp) * _MICROSECOND, identifier
