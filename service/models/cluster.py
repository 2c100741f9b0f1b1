"""Table of cluster specs."""

from __future__ import annotations

from typing import Any

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from autosbp.service.models._base import Base, list_indexes


class ClusterRow(Base):
    """A cluster spec; the id is its content's hash."""

    __tablename__ = "clusters"
    __table_args__ = list_indexes()

    name: Mapped[str] = mapped_column(String(4096))
    cluster_hash: Mapped[str] = mapped_column(String(64))
    content_hash: Mapped[str | None] = mapped_column(String(64), deferred=True)
    num_devices: Mapped[int]
    document: Mapped[dict[str, Any]]
