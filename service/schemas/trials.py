"""Trials at the edge."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from service.schemas._base import BodyId, Document, Request, Response
from service.schemas.jobs import Job


class TrialRequest(Request):
    """Ask for a measured run of a strategy, or of one of its baselines."""

    strategy_id: BodyId
    baseline: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")] | None = None
    steps: int = Field(20, ge=1, le=10_000, description="Measured steps.")
    warmup: int = Field(3, ge=1, le=1000, description="Steps before the measured ones.")
    seed: int = Field(0, ge=0, lt=2**31)


class TrialBrief(Response):
    """A trial, predicted against measured."""

    id: str = Field(examples=["tri-0a1b2c3d4e5f6071"])
    strategy_id: str
    baseline: str | None
    options: Document
    predicted: Document = Field(
        description="step_time_s, simulated_step_time_s, comm_bytes_per_device, memory_bytes_per_device."
    )
    measured_step_time_s: float | None
    relative_error: float | None = Field(description="(measured - simulated) / measured step time.")
    job: Job
    created_at: datetime


class Trial(TrialBrief):
    """A trial with everything that was measured."""

    result: Document | None = Field(
        description="The trial's own report: step times, memory, losses, collectives, and what it teaches its calibration."
    )
