"""Schemas of strategies."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from autosbp.service.schemas._base import Response


class Strategy(Response):
    """Summary of a stored strategy; GET /v1/strategies/{strategy_id} returns the complete plan."""

    id: str = Field(description="Id of the plan.")
    model_id: str
    cluster_id: str
    calibration_id: str | None
    searcher: str
    step_time_s: float = Field(
        description=("Predicted step time: simulated, with communication overlapping computation.")
    )
    comm_bytes_per_device: int
    memory_bytes_per_device: int
    created_at: datetime
