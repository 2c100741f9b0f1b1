"""What every resource does with the database: insert once, look up, page."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Select, tuple_
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.orm.interfaces import ORMOption

from autosbp.errors import InputError
from service.models import Base
from service.problems import not_found

Row = TypeVar("Row", bound=Base)


def new_id(prefix: str) -> str:
    """A fresh random id."""
    return f"{prefix}-{secrets.token_hex(8)}"


def insert_once(session: Session, row: Row) -> tuple[Row, bool]:
    """The stored row of that id, and whether this call stored it; safe against a concurrent insert of the same."""
    kind = type(row)
    if (stored := session.get(kind, row.id)) is not None:
        return stored, False
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        if (stored := session.get(kind, row.id)) is None:
            raise
        return stored, False
    return row, True


def require(session: Session, kind: type[Row], identifier: str, what: str, *options: ORMOption) -> Row:
    """The row that a path names, or 404."""
    row = session.get(kind, identifier, options=options)
    if row is None:
        raise not_found(what, identifier)
    return row


def referred(session: Session, kind: type[Row], identifier: str, field: str, what: str) -> Row:
    """The row that a member of a body names, or ``InputError``."""
    row = session.get(kind, identifier)
    if row is None:
        raise InputError(field, identifier, f"the id of a stored {what} is expected")
    return row


def page(
    session: Session, query: Select[Any], kind: type[Row], limit: int, cursor: str | None
) -> tuple[Sequence[Row], str | None]:
    """``limit`` rows, newest first, after ``cursor``; and the cursor of the next page."""
    order = tuple_(kind.created_at, kind.id)
    if cursor is not None:
        query = query.where(order < tuple_(*_decode(cursor)))
    query = query.order_by(kind.created_at.desc(), kind.id.desc()).limit(limit + 1)
    rows: Sequence[Row] = session.scalars(query).all()
    return rows[:limit], _encode(rows[limit - 1]) if len(rows) > limit else None


def _encode(row: Base) -> str:
    stamp = row.created_at.astimezone(UTC).isoformat()
    return base64.urlsafe_b64encode(f"{stamp} {row.id}".encode()).decode()


def _decode(cursor: str) -> tuple[datetime, str]:
    try:
        stamp, _, identifier = base64.urlsafe_b64decode(cursor.encode()).decode().partition(" ")
        return datetime.fromisoformat(stamp).astimezone(UTC), identifier
    except ValueError:
        raise InputError("cursor", cursor, "the next_cursor of an earlier page is expected") from None
