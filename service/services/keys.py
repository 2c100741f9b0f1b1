"""API keys of a tenant: create, list, rotate, revoke; used by the routes and the command line."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from autosbp.errors import InputError
from autosbp.service.auth.api_keys import ApiKey
from autosbp.service.auth.caller import SCOPES
from autosbp.service.db import Database
from autosbp.service.models import KeyRow, now
from autosbp.service.problem_details import conflict
from autosbp.service.services._list_page import ListPage
from autosbp.service.services._queries import Paged, new_id, page, require


@dataclass(frozen=True, slots=True)
class NewApiKey:
    """A newly created key; its text is not stored and cannot be shown again."""

    row: KeyRow
    text: str


def create(
    database: Database,
    name: str,
    scopes: Sequence[str],
    lifetime: timedelta | None = None,
    created_by: str | None = None,
) -> NewApiKey:
    """Create a key of the database's tenant; without ``lifetime`` it does not expire."""
    with database.write() as session:
        return _make(session, name, check_scopes(scopes), None if lifetime is None else now() + lifetime, created_by)


def check_first(database: Database, scopes: Sequence[str]) -> None:
    """Raise ``InputError`` for a first key without the scope admin: nobody could create further keys."""
    if "admin" in scopes:
        return
    with database.of(None).read() as session:
        if not session.scalar(select(exists(select(KeyRow.id)))):
            limit = "the first key must have the scope admin: from then on every request requires a key"
            raise InputError("scopes", ",".join(scopes), limit)


def check_scopes(scopes: Sequence[str]) -> tuple[str, ...]:
    """Return the scopes without repetition, in the order of ``SCOPES``; raise ``InputError`` for none or an unknown one."""
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise InputError("scopes", unknown[0] if unknown else None, f"expected some of {', '.join(SCOPES)}")
    return tuple(scope for scope in SCOPES if scope in scopes)


def rotate(database: Database, key_id: str, grace: timedelta, created_by: str | None = None) -> NewApiKey:
    """Create a key with the same name, scopes and lifetime; the old one stays valid for ``grace``."""
    with database.write() as session:
        old = _usable(session, key_id)
        lifetime = None if old.expires_at is None else old.expires_at - old.created_at
        expires_at = None if lifetime is None else now() + lifetime
        made = _make(session, old.name, old.scopes.split(), expires_at, created_by)
        end = now() + grace
        old.expires_at = end if old.expires_at is None else min(end, old.expires_at)
        return made


def revoke(database: Database, key_id: str) -> KeyRow:
    """Revoke a key at once; repeating it changes nothing."""
    with database.write() as session:
        row = require(session, KeyRow, key_id, "key")
        row.revoked_at = row.revoked_at or now()
        return row


def listing(database: Database, window: ListPage) -> Paged[KeyRow]:
    """Return a page of keys."""
    with database.read() as session:
        return page(session, KeyRow, window)


def all_keys(database: Database) -> Sequence[KeyRow]:
    """All keys that a session of ``database`` sees, oldest first."""
    with database.read() as session:
        return session.scalars(select(KeyRow).order_by(KeyRow.created_at, KeyRow.id)).all()


def state_of(row: KeyRow) -> str:
    """Return ``valid``, ``expired`` or ``revoked``."""
    if row.revoked_at is not None:
        return "revoked"
    return "valid" if row.expires_at is None or row.expires_at > now() else "expired"


def _usable(session: Session, key_id: str) -> KeyRow:
    row = require(session, KeyRow, key_id, "key")
    if state_of(row) != "valid":
        raise conflict(f"key {key_id!r} is {state_of(row)}")
    return row


def _make(
    session: Session, name: str, scopes: Sequence[str], expires_at: datetime | None, created_by: str | None
) -> NewApiKey:
    token, salt = ApiKey.new(), secrets.token_hex(16)
    row = KeyRow(
        id=new_id("key"),
        name=name,
        prefix=token.prefix,
        salt=salt,
        secret_hash=token.hashed(salt),
        scopes=" ".join(scopes),
        created_by=created_by,
        expires_at=expires_at,
    )
    session.add(row)
    session.flush()
    return NewApiKey(row, str(token))
