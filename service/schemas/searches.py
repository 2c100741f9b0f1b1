"""Searches at the edge."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from autosbp.search.pareto import MAX_POINTS
from service.schemas._base import BodyId, Document, Request, Response
from service.schemas.jobs import Job
from service.schemas.options import PlanOptions


class SearchRequest(Request):
    """Ask for the best strategy of a model on a cluster."""

    model_id: BodyId
    cluster_id: BodyId
    calibration_id: BodyId | None = None
    options: PlanOptions = PlanOptions()
    start_id: BodyId | None = Field(
        default=None,
        description="A strategy to begin with, of another batch, changed layers or links: it is costed anew, and where it fits "
        "the answer is no slower.",
    )
    num_points: int | None = Field(
        default=None,
        ge=2,
        le=MAX_POINTS,
        description="Ask for the Pareto front of step time against memory: so many strategies at most, fastest first.",
    )


class Search(Response):
    """A search, its job, and the strategy that it found."""

    id: str = Field(examples=["sea-0a1b2c3d4e5f6071"])
    model_id: str
    cluster_id: str
    calibration_id: str | None
    options: Document
    start_id: str | None = Field(description="The strategy that the search began with.")
    num_points: int | None
    strategy_id: str | None = Field(description="The fastest strategy, once it is found.")
    front: list[str] | None = Field(description="Strategies of the front, fastest first, where one was asked for.")
    job: Job
    created_at: datetime
