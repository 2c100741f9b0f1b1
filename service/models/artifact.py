"""Kept files of jobs."""

from __future__ import annotations

from sqlalchemy import BigInteger, String
from sqlalchemy.orm import Mapped, mapped_column

from service.models._base import Base, listed, refers


class ArtifactRow(Base):
    """One file that a job has left; the id is a hash of both. What it holds is in ``service.objects``."""

    __tablename__ = "artifacts"
    __table_args__ = (refers("job_id", "jobs"), *listed("job_id"))

    job_id: Mapped[str] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(String(256))
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
