"""Stored calibrations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import String, select
from sqlalchemy.orm import Mapped, column_property, mapped_column

from service.models._base import Base, listed, refers


class CalibrationRow(Base):
    """One calibration of one cluster; ``job_id`` is null for a document that a client posted, and
    for what trials taught.

    A family is one calibration, the root, and its versions that trials taught; rows are never changed. ``newest_id`` is
    the family's last version, the root's own id at first.
    """

    __tablename__ = "calibrations"
    __table_args__ = (
        refers("cluster_id", "clusters"),
        refers("job_id", "jobs"),
        refers("root_id", "calibrations"),
        *listed("cluster_id", "root_id"),
    )

    cluster_id: Mapped[str] = mapped_column(String(64))
    job_id: Mapped[str | None] = mapped_column(String(64))
    backend: Mapped[str] = mapped_column(String(16))
    complete: Mapped[bool]
    num_collectives: Mapped[int]
    num_ops: Mapped[int]
    root_id: Mapped[str] = mapped_column(String(64), nullable=True)
    num_trials: Mapped[int] = mapped_column(default=0, server_default="0")
    document: Mapped[dict[str, Any]] = mapped_column(deferred=True)
    if TYPE_CHECKING:
        newest_id: Mapped[str]


_version = CalibrationRow.__table__.alias()
CalibrationRow.newest_id = column_property(
    select(_version.c.id)
    .where(_version.c.root_id == CalibrationRow.root_id, _version.c.tenant == CalibrationRow.tenant)
    .order_by(_version.c.created_at.desc(), _version.c.num_trials.desc(), _version.c.id)
    .limit(1)
    .correlate_except(_version)
    .scalar_subquery()
)
