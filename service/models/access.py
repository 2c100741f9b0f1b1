"""Tables of API keys, audit entries, idempotency keys and ended browser sessions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from autosbp.service.models._base import Base, list_indexes


class KeyRow(Base):
    """An API key: its secret is stored as a keyed hash, its ``scopes`` as words separated by spaces.

    Keys are never deleted, so that a database that ever had one keeps requiring keys.
    """

    __tablename__ = "api_keys"
    __table_args__ = (Index(None, "prefix", unique=True), *list_indexes())

    name: Mapped[str] = mapped_column(String(128))
    prefix: Mapped[str] = mapped_column(String(16))
    salt: Mapped[str] = mapped_column(String(64))
    secret_hash: Mapped[str] = mapped_column(String(64))
    scopes: Mapped[str] = mapped_column(String(128))
    created_by: Mapped[str | None] = mapped_column(String(64))
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class AuditRow(Base):
    """A call that changed something or was refused; ``caller`` is the key's id, null if no key is needed."""

    __tablename__ = "audit"
    __table_args__ = list_indexes("caller")

    caller: Mapped[str | None] = mapped_column(String(64))
    address: Mapped[str] = mapped_column(String(64))
    method: Mapped[str] = mapped_column(String(16))
    path: Mapped[str] = mapped_column(String(512))
    status: Mapped[int]
    request_id: Mapped[str] = mapped_column(String(128))
    location: Mapped[str | None] = mapped_column(String(256))


class ReplayRow(Base):
    """The answer to a call with an ``Idempotency-Key``, whose hash is the id.

    ``status`` is null while the request named by ``owner`` is still running.
    """

    __tablename__ = "replays"
    __table_args__ = (Index(None, "expires_at"),)

    fingerprint: Mapped[str] = mapped_column(String(64))
    owner: Mapped[str] = mapped_column(String(64))
    status: Mapped[int | None]
    headers: Mapped[dict[str, Any] | None]
    body: Mapped[str | None] = mapped_column(Text)
    expires_at: Mapped[datetime]


class EndedSessionRow(Base):
    """A browser session that was signed out before its expiry; the id is a hash of the session's name."""

    __tablename__ = "ended_sessions"
    __table_args__ = (Index(None, "expires_at"),)

    expires_at: Mapped[datetime]
