"""API keys of one tenant: make, list, rotate, revoke. The routes and the command line both call these."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from autosbp.errors import InputError
from service.access.caller import SCOPES
from service.access.tokens import Token
from service.db import Database
from service.models import KeyRow, now
from service.problems import conflict
from service.services._store import Paged, new_id, page, require
from service.services._window import Window


@dataclass(frozen=True, slots=True)
class Made:
    """A key that was just made; its text is not stored and cannot be shown again."""

    row: KeyRow
    text: str


def create(
    database: Database,
    name: str,
    scopes: Sequence[str],
    lifetime: timedelta | None = None,
    created_by: str | None = None,
) -> Made:
    """Make a key of the database's tenant; without ``lifetime`` it does not expire."""
    with database.write() as session:
        return _make(session, name, check_scopes(scopes), None if lifetime is None else now() + lifetime, created_by)


def check_scopes(scopes: Sequence[str]) -> tuple[str, ...]:
    """In the order of ``SCOPES``, each once; ``InputError`` for an unknown one or none."""
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise InputError("scopes", unknown[0] if unknown else None, f"some of {', '.join(SCOPES)} are expected")
    return tuple(scope for scope in SCOPES if scope in scopes)


def rotate(database: Database, key_id: str, grace: timedelta, created_by: str | None = None) -> Made:
    """A new key with the same name, scopes and lifetime; the old one works on for ``grace``."""
    with database.write() as session:
        old = _usable(session, key_id)
        lifetime = None if old.expires_at is None else old.expires_at - old.created_at
        expires_at = None if lifetime is None else now() + lifetime
        made = _make(session, old.name, old.scopes.split(), expires_at, created_by)
        end = now() + grace
        old.expires_at = end if old.expires_at is None else min(end, old.expires_at)
        return made


def revoke(database: Database, key_id: str) -> KeyRow:
    """End a key at once; repeating it changes nothing."""
    with database.write() as session:
        row = require(session, KeyRow, key_id, "key")
        row.revoked_at = row.revoked_at or now()
        return row


def listing(database: Database, window: Window) -> Paged[KeyRow]:
    """A page of keys."""
    with database.read() as session:
        return page(session, KeyRow, window)


def every(database: Database) -> Sequence[KeyRow]:
    """All keys that a session of ``database`` sees, oldest first."""
    with database.read() as session:
        return session.scalars(select(KeyRow).order_by(KeyRow.created_at, KeyRow.id)).all()


def state_of(row: KeyRow) -> str:
    """``valid``, ``expired`` or ``revoked``."""
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
) -> Made:
    token, salt = Token.new(), secrets.token_hex(16)
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
    return Made(row, str(token))
