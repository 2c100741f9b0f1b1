"""Jobs at the edge."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from service.schemas._base import Document, Problem, Response

JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]


class Job(Response):
    """A durable piece of work."""

    id: str = Field(examples=["job-3f9c2a1b7d604e58"])
    kind: str = Field(description="capture, calibrate, search or trial.")
    state: JobState
    resource: str | None = Field(
        description="Path of the resource that the job fills.", examples=["/v1/searches/sea-1"]
    )
    progress: float | None = Field(description="Fraction done, where known.")
    message: str
    figures: Document = Field(description="Numbers about the progress, such as best_step_time_s of a search.")
    problem: Problem | None = Field(description="Why the job failed.")
    result: Document | None = Field(description="Ids of what the job stored.", examples=[{"strategy_id": "plan-1"}])
    cancel_requested: bool
    attempts: int
    revision: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
