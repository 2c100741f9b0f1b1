"""Schemas of searches."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from autosbp.search.pareto import MAX_POINTS
from autosbp.service.schemas._base import BodyId, Document, Request, Response
from autosbp.service.schemas.jobs import Job
from autosbp.service.schemas.options import PlanOptions


class SearchOfCapture(Request):
    """Request to search the best strategy of a model on a cluster, without the model, which is captured first."""

    cluster_id: BodyId
    calibration_id: BodyId | None = None
    options: PlanOptions = PlanOptions()
    start_id: BodyId | None = Field(
        default=None,
        description="Strategy for a warm start, also for another batch, changed layers or other links. Its cost is "
        "recomputed; if it fits, the result is not slower.",
    )
    num_points: int | None = Field(
        default=None,
        ge=2,
        le=MAX_POINTS,
        description="Maximum number of strategies on the Pareto front of step time and memory, fastest first.",
    )


class SearchRequest(SearchOfCapture):
    """Request to search the best strategy of a model on a cluster."""

    model_id: BodyId


class Search(Response):
    """A search, its job, and the strategy that it found."""

    id: str = Field(examples=["sea-0a1b2c3d4e5f6071"])
    model_id: str
    cluster_id: str
    calibration_id: str | None
    options: Document
    start_id: str | None = Field(description="Strategy used for the warm start.")
    num_points: int | None
    strategy_id: str | None = Field(description="Fastest strategy, once found.")
    front: list[str] | None = Field(description="Strategies of the Pareto front, fastest first, if requested.")
    job: Job
    created_at: datetime
