"""Searches at the edge."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from service.schemas._base import BodyId, Document, Request, Response
from service.schemas.jobs import Job
from service.schemas.options import PlanOptions


class SearchRequest(Request):
    """Ask for the best strategy of a model on a cluster."""

    model_id: BodyId
    cluster_id: BodyId
    calibration_id: BodyId | None = None
    options: PlanOptions = PlanOptions()


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
