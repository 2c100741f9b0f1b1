"""Stored strategies: whole plans with their predicted costs, baselines and provenance."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, String
from sqlalchemy.orm import Mapped, mapped_column

from service.models._base import Base, listed, refers


class StrategyRow(Base):
    """One plan; the id is the plan's own id, so equal plans are one row."""

    __tablename__ = "strategies"
    __table_args__ = (
        refers("model_id", "models"),
        refers("cluster_id", "clusters"),
        refers("calibration_id", "calibrations"),
        *listed("model_id", "cluster_id", "calibration_id"),
    )

    model_id: Mapped[str] = mapped_column(String(64))
    cluster_id: Mapped[str] = mapped_column(String(64))
    calibration_id: Mapped[str | None] = mapped_column(String(64))
    searcher: Mapped[str] = mapped_column(String(64))
    step_time_s: Mapped[float]
    comm_bytes_per_device: Mapped[int] = mapped_column(BigInteger)
    memory_bytes_per_device: Mapped[int] = mapped_column(BigInteger)
    plan: Mapped[dict[str, Any]] = mapped_column(deferred=True)
