"""Stored model graphs."""

from __future__ import annotations

from typing import Any

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from service.models._base import Base, listed


class ModelRow(Base):
    """One logical graph; the id is its content's hash."""

    __tablename__ = "models"
    __table_args__ = listed()

    name: Mapped[str] = mapped_column(String(4096))
    source: Mapped[str] = mapped_column(String(256))
    graph_hash: Mapped[str] = mapped_column(String(64))
    summary: Mapped[dict[str, Any]]
    document: Mapped[dict[str, Any]] = mapped_column(deferred=True)
