"""Table of trials: measured runs of a strategy or of one of its baselines."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, String
from sqlalchemy.orm import Mapped, mapped_column, relationship

from autosbp.service.models._base import Base, list_indexes, reference_indexes, tenant_foreign_key
from autosbp.service.models.job import JobRow


class TrialRow(Base):
    """A trial; ``result`` is set once its job has succeeded, ``gates`` and ``passed`` once a client has judged it."""

    __tablename__ = "trials"
    __table_args__ = (
        tenant_foreign_key("strategy_id", "strategies"),
        tenant_foreign_key("job_id", "jobs"),
        *list_indexes("strategy_id"),
        *reference_indexes("job_id"),
    )

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
