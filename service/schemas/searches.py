"""Searches at the edge."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from service.schemas._base import BodyId, Document, Request, Response
from service.schemas.jobs import Job


class SearchRequest(Request):
    """Ask for the best strategy of a model on a cluster."""

    model_id: BodyId
    cluster_id: BodyId
    calibration_id: BodyId | None = None
    options: Document = Field(
        default={},
        description="global_batch, micro_batch, searcher, seed, time_limit_s, optimizer, memory_limit_bytes.",
        examples=[{"global_batch": 64, "searcher": "auto", "seed": 0, "time_limit_s": 60.0}],
    )


class Search(Response):
    """A search, its job, and the strategy that it found."""

    id: str = Field(examples=["sea-0a1b2c3d4e5f6071"])
    model_id: str
    cluster_id: str
    calibration_id: str | None
    options: Document
    strategy_id: str | None
    job: Job
    created_at: datetime
