"""Table of files to delete, whose rows are deleted already."""

from __future__ import annotations

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from autosbp.service.models._base import Base


class RemovedFilesRow(Base):
    """A file or folder to delete; ``place`` is as defined in ``autosbp.service.services.deleted_files``.

    The row is written in the transaction that deletes the owner, and deleted once the files are gone.
    """

    __tablename__ = "removed_files"

    place: Mapped[str] = mapped_column(String(512))
