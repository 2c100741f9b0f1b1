"""Stored calibrations."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from service.models._base import Base


class CalibrationRow(Base):
    """One calibration of one cluster; ``job_id`` is null for a document that a client posted."""

    __tablename__ = "calibrations"

    cluster_id: Mapped[str] = mapped_column(ForeignKey("clusters.id"), index=True)
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"))
    backend: Mapped[str] = mapped_column(String(16))
    complete: Mapped[bool]
    num_collectives: Mapped[int]
    num_ops: Mapped[int]
    document: Mapped[dict[str, Any]] = mapped_column(deferred=True)
