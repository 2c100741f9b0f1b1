"""Table of model graphs."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from autosbp.service.models._base import Base, list_indexes


class ModelRow(Base):
    """A logical graph; the id is its content's hash, ``num_bytes`` the document's size."""

    __tablename__ = "models"
    __table_args__ = (*list_indexes(), Index(None, "tenant", "num_bytes"))

    name: Mapped[str] = mapped_column(String(4096))
    source: Mapped[str] = mapped_column(String(256))
    graph_hash: Mapped[str] = mapped_column(String(64))
    num_bytes: Mapped[int] = mapped_column(BigInteger, server_default="0", deferred=True)
    content_hash: Mapped[str | None] = mapped_column(String(64), deferred=True)
    summary: Mapped[dict[str, Any]]
    document: Mapped[dict[str, Any]] = mapped_column(deferred=True)
