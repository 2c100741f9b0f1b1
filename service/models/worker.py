"""Table of workers: processes that work on jobs."""

from __future__ import annotations

from sqlalchemy import BigInteger, String
from sqlalchemy.orm import Mapped, mapped_column

from autosbp.service.models._base import Base


class WorkerRow(Base):
    """A process that works on jobs; ``beats`` grows while it lives. It serves all tenants but is stored under the default one.

    ``machine`` is the scope in which ``pid`` and ``started`` (clock ticks after boot) identify the process.
    """

    __tablename__ = "workers"

    machine: Mapped[str] = mapped_column(String(64))
    pid: Mapped[int]
    started: Mapped[int] = mapped_column(BigInteger)
    beats: Mapped[int] = mapped_column(BigInteger, default=0)
