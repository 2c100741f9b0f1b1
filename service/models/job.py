"""Durable jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from service.models._base import Base, listed


class JobRow(Base):
    """One job; the contract of its states is in ``service.jobs._base``. ``revision`` grows with every change. ``worker`` is
    who works on it, with the right of ``fence``. ``trace`` is whose trace it is part of (``service.tracing``), read where
    something is traced only. The id alone is unique: the runner knows jobs by it."""

    __tablename__ = "jobs"
    __table_args__ = (Index(None, "state", "created_at"), *listed())

    kind: Mapped[str] = mapped_column(String(32))
    state: Mapped[str] = mapped_column(String(16), default="queued")
    payload: Mapped[dict[str, Any]]
    resource: Mapped[str | None] = mapped_column(String(128))
    progress: Mapped[float | None]
    message: Mapped[str] = mapped_column(Text, default="")
    figures: Mapped[dict[str, Any]] = mapped_column(default=dict)
    problem: Mapped[dict[str, Any] | None]
    result: Mapped[dict[str, Any] | None]
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    attempts: Mapped[int] = mapped_column(default=0)
    revision: Mapped[int] = mapped_column(default=1)
    worker: Mapped[str | None] = mapped_column(String(64))
    fence: Mapped[int] = mapped_column(default=0, server_default="0")
    trace: Mapped[dict[str, Any] | None] = mapped_column(deferred=True)
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
