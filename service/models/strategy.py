"""Table of strategies: complete plans with predicted costs, baselines and provenance."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, String
from sqlalchemy.orm import Mapped, mapped_column

from autosbp.service.models._base import Base, list_indexes, tenant_foreign_key


class StrategyRow(Base):
    """A plan; the id is the plan's own id, so equal plans share one row."""

    __tablename__ = "strategies"
    __table_args__ = (
        tenant_foreign_key("model_id", "models"),
        tenant_foreign_key("cluster_id", "clusters"),
        tenant_foreign_key("calibration_id", "calibrations"),
        *list_indexes("model_id", "cluster_id", "calibration_id"),
    )

    model_id: Mapped[str] = mapped_column(String(64))
    cluster_id: Mapped[str] = mapped_column(String(64))
    calibration_id: Mapped[str | None] = mapped_column(String(64))
    searcher: Mapped[str] = mapped_column(String(64))
    step_time_s: Mapped[float]
    comm_bytes_per_device: Mapped[int] = mapped_column(BigInteger)
    memory_bytes_per_device: Mapped[int] = mapped_column(BigInteger)
    content_hash: Mapped[str | None] = mapped_column(String(64), deferred=True)
    plan: Mapped[dict[str, Any]] = mapped_column(deferred=True)
