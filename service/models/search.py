"""Stored searches: what was asked for, and the strategy that answered it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Index, String
from sqlalchemy.orm import Mapped, mapped_column, relationship

from service.models._base import Base, listed, refers
from service.models.job import JobRow


class SearchRow(Base):
    """One search; ``strategy_id`` is set when its job has succeeded, and ``front`` where several strategies were asked for:
    their ids, fastest first. ``start_id`` is a strategy, which are kept for good; ``request_hash`` that of everything the
    answer depends on."""

    __tablename__ = "searches"
    __table_args__ = (
        refers("model_id", "models"),
        refers("cluster_id", "clusters"),
        refers("calibration_id", "calibrations"),
        refers("job_id", "jobs"),
        refers("strategy_id", "strategies"),
        *listed("model_id", "cluster_id", "strategy_id"),
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
    request_hash: Mapped[str | None] = mapped_column(String(64))
    job: Mapped[JobRow] = relationship(lazy="joined", innerjoin=True, viewonly=True)
