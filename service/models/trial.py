"""Stored trials: measured runs of a strategy or of one of its baselines."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, String
from sqlalchemy.orm import Mapped, mapped_column, relationship

from service.models._base import Base, listed, refers
from service.models.job import JobRow


class TrialRow(Base):
    """One trial; ``result`` is set when its job has succeeded, ``gates`` and ``passed`` when whoever asked has judged that."""

    __tablename__ = "trials"
    __table_args__ = (refers("strategy_id", "strategies"), refers("job_id", "jobs"), *listed("strategy_id"))

    strategy_id: Mapped[str] = mapped_column(String(64))
    job_id: Mapped[str] = mapped_column(String(64))
    baseline: Mapped[str | None] = mapped_column(String(64))
    options: Mapped[dict[str, Any]]
    predicted: Mapped[dict[str, Any]]
    measured_step_time_s: Mapped[float | None]
    relative_error: Mapped[float | None]
    result: Mapped[dict[str, Any] | None] = mapped_column(deferred=True)
    label: Mapped[str | None] = mapped_column(String(200))
    passed: Mapped[bool | None]
    gates: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True), deferred=True)
    job: Mapped[JobRow] = relationship(lazy="joined", innerjoin=True, viewonly=True)
