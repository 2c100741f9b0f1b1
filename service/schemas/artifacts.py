"""Schemas of artifacts."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from autosbp.service.schemas._base import Response


class Artifact(Response):
    """A file that a trial or a calibration left."""

    id: str = Field(examples=["art-0a1b2c3d4e5f6071"])
    job_id: str
    name: str = Field(examples=["ranks.log"])
    num_bytes: int
    sha256: str = Field(description="SHA-256 of the contents, in hexadecimal digits.")
    created_at: datetime
