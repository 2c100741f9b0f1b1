"""Tables of jobs and of tenants' shares in the queues."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from autosbp.service.models._base import Base, list_indexes

DEFAULT_EXPECTED_S = 20.0
"""Expected run time of jobs without a time limit: the default time limit of a search."""


class JobRow(Base):
    """A job; ``autosbp.service.jobs._base`` has the contract of its states. The id alone is unique, without the tenant.

    ``revision`` grows with every change. ``worker`` runs the job, authorised by ``fence``. ``expected_s`` is the
    expected run time: the job's own time limit, if it has one. ``trace`` holds its trace contexts (``autosbp.service.tracing``)
    and is only loaded when tracing is on.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        Index(None, "state", "created_at"),
        Index(None, "state", "lane", "tenant", "created_at"),
        *list_indexes(),
    )

    kind: Mapped[str] = mapped_column(String(32))
    lane: Mapped[str] = mapped_column(String(16), default="plan", server_default="plan")
    state: Mapped[str] = mapped_column(String(16), default="queued")
    payload: Mapped[dict[str, Any]]
    resource: Mapped[str | None] = mapped_column(String(128))
    progress: Mapped[float | None]
    message: Mapped[str] = mapped_column(Text, default="")
    figures: Mapped[dict[str, Any]] = mapped_column(default=dict)
    problem: Mapped[dict[str, Any] | None]
    result: Mapped[dict[str, Any] | None]
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    expected_s: Mapped[float] = mapped_column(default=DEFAULT_EXPECTED_S, server_default=f"{DEFAULT_EXPECTED_S:g}")
    attempts: Mapped[int] = mapped_column(default=0)
    revision: Mapped[int] = mapped_column(default=1)
    worker: Mapped[str | None] = mapped_column(String(64))
    fence: Mapped[int] = mapped_column(default=0, server_default="0")
    trace: Mapped[dict[str, Any] | None] = mapped_column(deferred=True)
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class ShareRow(Base):
    """A tenant's state in one lane's fair queue; the id is the lane (``autosbp.service.jobs._fair_queue``).

    ``began_s`` and ``due_s`` are start and finish tags of the tenant's latest job on the lane's virtual clock,
    ``weight`` is the weight it was charged with.
    """

    __tablename__ = "queue_shares"

    began_s: Mapped[float]
    due_s: Mapped[float]
    weight: Mapped[float]
