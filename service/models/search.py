"""Stored searches: what was asked for, and the strategy that answered it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column, relationship

from service.models._base import Base
from service.models.job import JobRow


class SearchRow(Base):
    """One search; ``strategy_id`` is set when its job has succeeded."""

    __tablename__ = "searches"

    model_id: Mapped[str] = mapped_column(ForeignKey("models.id"), index=True)
    cluster_id: Mapped[str] = mapped_column(ForeignKey("clusters.id"), index=True)
    calibration_id: Mapped[str | None] = mapped_column(ForeignKey("calibrations.id"))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    strategy_id: Mapped[str | None] = mapped_column(ForeignKey("strategies.id"), index=True)
    options: Mapped[dict[str, Any]]
    job: Mapped[JobRow] = relationship(lazy="joined", innerjoin=True)
