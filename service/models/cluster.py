"""Stored cluster specs."""

from __future__ import annotations

from typing import Any

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from service.models._base import Base, listed


class ClusterRow(Base):
    """One cluster spec; the id is its content's hash."""

    __tablename__ = "clusters"
    __table_args__ = listed()

    name: Mapped[str] = mapped_column(String(4096))
    cluster_hash: Mapped[str] = mapped_column(String(64))
    num_devices: Mapped[int]
    document: Mapped[dict[str, Any]]
