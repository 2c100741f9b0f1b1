"""Processes that work on jobs."""

from __future__ import annotations

from sqlalchemy import BigInteger, String
from sqlalchemy.orm import Mapped, mapped_column

from service.models._base import Base


class WorkerRow(Base):
    """One process while it works on jobs: ``beats`` grows while it lives. ``machine`` is where ``pid`` and ``started``
    (clock ticks after boot) name it. It serves all tenants; its own is the default one."""

    __tablename__ = "workers"

    machine: Mapped[str] = mapped_column(String(64))
    pid: Mapped[int]
    started: Mapped[int] = mapped_column(BigInteger)
    beats: Mapped[int] = mapped_column(BigInteger, default=0)
