"""Schemas of jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from autosbp.service.schemas._base import Document, Problem, Response

JobKind = Literal["capture", "calibrate", "search", "trial", "tune", "why", "what-if"]
JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]


class Job(Response):
    """A durable background job."""

    id: str = Field(examples=["job-3f9c2a1b7d604e588293a4b5c6d7e8f9"])
    kind: JobKind
    state: JobState
    resource: str | None = Field(
        description="Path of the resource that the job produces.", examples=["/v1/searches/sea-1"]
    )
    progress: float | None = Field(description="Completed fraction, if known.")
    message: str
    figures: Document = Field(description="Progress metrics, such as best_step_time_s of a search.")
    problem: Problem | None = Field(description="Reason for the failure.")
    result: Document | None = Field(
        description="Ids of the resources that the job stored.", examples=[{"strategy_id": "plan-1"}]
    )
    cancel_requested: bool
    attempts: int
    revision: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
