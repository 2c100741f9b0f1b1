"""Table of calibrations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Index, String, select
from sqlalchemy.orm import Mapped, column_property, mapped_column

from autosbp.service.models._base import Base, list_indexes, reference_indexes, tenant_foreign_key


class CalibrationRow(Base):
    """A calibration of a cluster; ``job_id`` is null for posted documents and for versions corrected by trials.

    A family is one calibration, the root, and the versions that trials derived from it; rows never change.
    ``newest_id`` is the family's latest version, initially the root's own id.
    """

    __tablename__ = "calibrations"
    __table_args__ = (
        tenant_foreign_key("cluster_id", "clusters"),
        tenant_foreign_key("job_id", "jobs"),
        tenant_foreign_key("root_id", "calibrations"),
        *list_indexes("cluster_id", "root_id"),
        *reference_indexes("job_id"),
        Index(None, "tenant", "num_bytes"),
    )

    cluster_id: Mapped[str] = mapped_column(String(64))
    job_id: Mapped[str | None] = mapped_column(String(64))
    backend: Mapped[str] = mapped_column(String(16))
    complete: Mapped[bool]
    num_collectives: Mapped[int]
    num_ops: Mapped[int]
    root_id: Mapped[str] = mapped_column(String(64), nullable=True)
    num_trials: Mapped[int] = mapped_column(default=0, server_default="0")
    num_bytes: Mapped[int] = mapped_column(BigInteger, server_default="0", deferred=True)
    content_hash: Mapped[str | None] = mapped_column(String(64), deferred=True)
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
