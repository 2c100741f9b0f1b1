"""Table of artifacts: files of jobs that are kept."""

from __future__ import annotations

from sqlalchemy import BigInteger, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from autosbp.service.models._base import Base, list_indexes, tenant_foreign_key


class ArtifactRow(Base):
    """A file that a job left; the id is a hash of job and name. ``autosbp.service.artifact_storage`` has the content."""

    __tablename__ = "artifacts"
    __table_args__ = (tenant_foreign_key("job_id", "jobs"), *list_indexes("job_id"), Index(None, "tenant", "num_bytes"))

    job_id: Mapped[str] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(String(256))
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
