"""Stored strategies: whole plans with their predicted costs, baselines and provenance."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from service.models._base import Base


class StrategyRow(Base):
    """One plan; the id is the plan's own id, so equal plans are one row."""

    __tablename__ = "strategies"

    model_id: Mapped[str] = mapped_column(ForeignKey("models.id"), index=True)
    cluster_id: Mapped[str] = mapped_column(ForeignKey("clusters.id"), index=True)
    calibration_id: Mapped[str | None] = mapped_column(ForeignKey("calibrations.id"))
    searcher: Mapped[str] = mapped_column(String(64))
    step_time_s: Mapped[float]
    comm_bytes_per_device: Mapped[int] = mapped_column(BigInteger)
    memory_bytes_per_device: Mapped[int] = mapped_column(BigInteger)
    plan: Mapped[dict[str, Any]] = mapped_column(deferred=True)
