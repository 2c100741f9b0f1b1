"""Stored analyses: questions about a strategy that take a search to answer."""

from __future__ import annotations

from typing import Any

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column, relationship

from service.models._base import Base, listed, refers
from service.models.job import JobRow


class AnalysisRow(Base):
    """One question about one strategy; the id is a hash of both, and ``result`` is set when its job has succeeded."""

    __tablename__ = "analyses"
    __table_args__ = (refers("strategy_id", "strategies"), refers("job_id", "jobs"), *listed("strategy_id"))

    strategy_id: Mapped[str] = mapped_column(String(64))
    job_id: Mapped[str] = mapped_column(String(64))
    kind: Mapped[str] = mapped_column(String(16))
    options: Mapped[dict[str, Any]]
    result: Mapped[dict[str, Any] | None] = mapped_column(deferred=True)
    job: Mapped[JobRow] = relationship(lazy="joined", innerjoin=True, viewonly=True)
