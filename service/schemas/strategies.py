"""Strategies at the edge."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from service.schemas._base import Response


class Strategy(Response):
    """A stored strategy in brief; the whole plan is at its own address."""

    id: str = Field(description="The plan's id.")
    model_id: str
    cluster_id: str
    calibration_id: str | None
    searcher: str
    step_time_s: float = Field(description="Of the simulated step, in which communication overlaps computation.")
    comm_bytes_per_device: int
    memory_bytes_per_device: int
    created_at: datetime
