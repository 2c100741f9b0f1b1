"""Who may call, who did, and what was answered to calls that may be repeated."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from service.models._base import Base, listed


class KeyRow(Base):
    """One API key: its secret is stored as a keyed hash, ``scopes`` as words. A key is never deleted, so that a database
    that ever had one goes on to ask for keys."""

    __tablename__ = "api_keys"
    __table_args__ = (Index(None, "prefix", unique=True), *listed())

    name: Mapped[str] = mapped_column(String(128))
    prefix: Mapped[str] = mapped_column(String(16))
    salt: Mapped[str] = mapped_column(String(64))
    secret_hash: Mapped[str] = mapped_column(String(64))
    scopes: Mapped[str] = mapped_column(String(128))
    created_by: Mapped[str | None] = mapped_column(String(64))
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class AuditRow(Base):
    """One call that changed something or was refused; ``caller`` is the key's id, null where no key is needed."""

    __tablename__ = "audit"
    __table_args__ = listed("caller")

    caller: Mapped[str | None] = mapped_column(String(64))
    address: Mapped[str] = mapped_column(String(64))
    method: Mapped[str] = mapped_column(String(16))
    path: Mapped[str] = mapped_column(String(512))
    status: Mapped[int]
    request_id: Mapped[str] = mapped_column(String(128))
    location: Mapped[str | None] = mapped_column(String(256))


class ReplayRow(Base):
    """The answer to a call under an ``Idempotency-Key``, whose hash is the id; ``status`` is null while it is made, by the
    request that ``owner`` names."""

    __tablename__ = "replays"
    __table_args__ = (Index(None, "expires_at"),)

    fingerprint: Mapped[str] = mapped_column(String(64))
    owner: Mapped[str] = mapped_column(String(64))
    status: Mapped[int | None]
    headers: Mapped[dict[str, Any] | None]
    body: Mapped[str | None] = mapped_column(Text)
    expires_at: Mapped[datetime]


class EndedSessionRow(Base):
    """A session of a browser that was signed out of before its time; the id is the hash of what names it."""

    __tablename__ = "ended_sessions"
    __table_args__ = (Index(None, "expires_at"),)

    expires_at: Mapped[datetime]
