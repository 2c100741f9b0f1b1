"""Table of analyses: questions about a strategy that take a search to answer."""

from __future__ import annotations

from typing import Any

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column, relationship

from autosbp.service.models._base import Base, list_indexes, reference_indexes, tenant_foreign_key
from autosbp.service.models.job import JobRow


class AnalysisRow(Base):
    """A question about a strategy; the id is a hash of both. ``result`` is set once its job has succeeded."""

    __tablename__ = "analyses"
    __table_args__ = (
        tenant_foreign_key("strategy_id", "strategies"),
        tenant_foreign_key("job_id", "jobs"),
        *list_indexes("strategy_id"),
        *reference_indexes("job_id"),
    )

    strategy_id: Mapped[str] = mapped_column(String(64))
    job_id: Mapped[str] = mapped_column(String(64))
    kind: Mapped[str] = mapped_column(String(16))
    options: Mapped[dict[str, Any]]
    result: Mapped[dict[str, Any] | None] = mapped_column(deferred=True)
    job: Mapped[JobRow] = relationship(lazy="joined", innerjoin=True, viewonly=True)
