"""Schemas of searches."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from autosbp.errors import InputError
from autosbp.search.pareto import MAX_POINTS
from autosbp.service.schemas._base import BodyId, Document, Request, Response
from autosbp.service.schemas.jobs import Job
from autosbp.service.schemas.options import PlanOptions
from autosbp.tuning.options import MAX_MINUTES, TuneOptions
from autosbp.tuning.proposers import DEFAULT_PROPOSER, PROPOSERS
from autosbp.tuning.trial_pool import TrialEffort

SearchMode = Literal["plan", "tune"]


class Tuning(Request):
    """Budgets and effort of a search by trials."""

    trials: int = Field(default=200, ge=1, le=10_000, description="Budget in trials; failed ones count.")
    minutes: float | None = Field(default=None, gt=0, le=MAX_MINUTES, description="Further budget in minutes.")
    proposer: str = Field(
        default=DEFAULT_PROPOSER,
        max_length=64,
        description="How strategies are chosen: by a ranking model that learns from trials, at random, or by Optuna's TPE.",
        json_schema_extra={"enum": [*PROPOSERS]},
    )
    seed: int = Field(default=0, ge=0, lt=2**31, description="Seed of samples, parameters and batches.")
    steps: int = Field(default=5, ge=1, le=10_000, description="Number of timed steps of a trial, at most.")
    warmup: int = Field(default=1, ge=1, le=1000, description="Number of untimed warm-up steps of a trial.")
    max_s: float = Field(
        default=2.0, gt=0, le=3600, description="Seconds of steps after which a trial starts no further one."
    )
    timeout_s: float = Field(default=60.0, gt=0, le=86_400, description="Seconds after which a trial has failed.")

    def checked(self) -> TuneOptions:
        """Convert to the library's type; raise ``InputError`` with the member's path in the request."""
        try:
            effort = TrialEffort(self.steps, self.warmup, self.max_s, self.timeout_s)
            return TuneOptions(self.trials, self.minutes, self.proposer, self.seed, effort)
        except InputError as error:
            raise InputError(f"tuning.{error.field}", error.value, error.limit) from None


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
    mode: SearchMode = Field(
        default="plan",
        description="``plan`` predicts step times. ``tune`` also measures strategies by trials on real ranks, beginning "
        "with the plan and its baselines; it needs the scope ``trial``.",
    )
    tuning: Tuning | None = Field(default=None, description="Budgets of the mode ``tune``, which has defaults.")


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
    front: list[str] | None = Field(
        description="Strategies of the Pareto front, fastest first, if requested; in the mode ``tune``, the fastest ones."
    )
    mode: SearchMode
    tuning: Document | None = Field(description="Budgets of the mode ``tune``.")
    job: Job
    created_at: datetime
