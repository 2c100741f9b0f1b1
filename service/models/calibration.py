"""Stored calibrations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import ForeignKey, String, select
from sqlalchemy.orm import Mapped, aliased, column_property, mapped_column

from service.models._base import Base


class CalibrationRow(Base):
    """One calibration of one cluster; ``job_id`` is null for a document that a client posted, and
    for what trials taught.

    A family is one calibration, the root, and its versions that trials taught; rows are never changed. ``newest_id`` is
    the family's last version, the root's own id at first.
    """

    __tablename__ = "calibrations"

    cluster_id: Mapped[str] = mapped_column(ForeignKey("clusters.id"), index=True)
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"))
    backend: Mapped[str] = mapped_column(String(16))
    complete: Mapped[bool]
    num_collectives: Mapped[int]
    num_ops: Mapped[int]
    root_id: Mapped[str] = mapped_column(ForeignKey("calibrations.id"), index=True, nullable=True)
    num_trials: Mapped[int] = mapped_column(default=0, server_default="0")
    document: Mapped[dict[str, Any]] = mapped_column(deferred=True)
    if TYPE_CHECKING:
        newest_id: Mapped[str]


_version = aliased(CalibrationRow)
CalibrationRow.newest_id = column_property(
    select(_version.id)
    .where(_version.root_id == CalibrationRow.root_id)
    .order_by(_version.created_at.desc(), _version.num_trials.desc(), _version.id)
    .limit(1)
    .correlate_except(_version)
    .scalar_subquery()
)
