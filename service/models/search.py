"""Table of searches: the request, and the strategy that answered it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Index, String
from sqlalchemy.orm import Mapped, mapped_column, relationship

from autosbp.service.models._base import Base, list_indexes, reference_indexes, tenant_foreign_key
from autosbp.service.models.job import JobRow


class SearchRow(Base):
    """A search; ``strategy_id`` is set once its job has succeeded.

    ``front`` lists the ids of a Pareto front's strategies, fastest first. ``start_id`` is the warm start's strategy.
    ``tuning`` are the options of a search by trials, else None; ``tuning_summary`` is what its trials showed.
    ``request_hash`` covers everything that the answer depends on.
    """

    __tablename__ = "searches"
    __table_args__ = (
        tenant_foreign_key("model_id", "models"),
        tenant_foreign_key("cluster_id", "clusters"),
        tenant_foreign_key("calibration_id", "calibrations"),
        tenant_foreign_key("job_id", "jobs"),
        tenant_foreign_key("strategy_id", "strategies"),
        *list_indexes("model_id", "cluster_id", "strategy_id"),
        *reference_indexes("calibration_id", "job_id", "start_id"),
        Index(None, "tenant", "request_hash", "created_at"),
    )

    model_id: Mapped[str] = mapped_column(String(64))
    cluster_id: Mapped[str] = mapped_column(String(64))
    calibration_id: Mapped[str | None] = mapped_column(String(64))
    job_id: Mapped[str] = mapped_column(String(64))
    strategy_id: Mapped[str | None] = mapped_column(String(64))
    options: Mapped[dict[str, Any]]
    start_id: Mapped[str | None] = mapped_column(String(64))
    num_points: Mapped[int | None]
    front: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    tuning: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    tuning_summary: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True), deferred=True)
    request_hash: Mapped[str | None] = mapped_column(String(64))
    job: Mapped[JobRow] = relationship(lazy="joined", innerjoin=True, viewonly=True)

    @property
    def mode(self) -> str:
        """``plan`` or ``tune``."""
        return "plan" if self.tuning is None else "tune"
