"""Schemas of trials."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from autosbp.report.trial_gates import GateLimits
from autosbp.service.schemas._base import BodyId, Document, Request, Response
from autosbp.service.schemas.jobs import Job

Limit = Annotated[float | None, Field(ge=0, allow_inf_nan=False)]
Label = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]


class TrialRequest(Request):
    """Request to run and measure a strategy or one of its baselines."""

    strategy_id: BodyId
    baseline: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")] | None = None
    steps: int = Field(20, ge=1, le=10_000, description="Number of timed steps.")
    warmup: int = Field(3, ge=1, le=1000, description="Number of untimed warm-up steps.")
    seed: int = Field(0, ge=0, lt=2**31)
    label: Label | None = Field(None, description="Label to filter trials by, such as a branch.")


class JudgeRequest(Request):
    """Limits on a trial's measurements.

    Every trial is also checked to have issued the collectives that the cost model assumed.
    """

    max_step_time_s: Limit = Field(None, description="Maximum median step time in seconds.")
    max_loss_difference: Limit = Field(
        None, description=("Maximum relative difference of the losses from single-device training.")
    )
    max_regression: Limit = Field(
        None, description="Maximum slowdown of the median step against earlier passed trials, as a fraction."
    )
    max_prediction_error: Limit = Field(
        None, description=("Maximum error of the predicted step time, as a fraction of the measured one.")
    )
    baseline_label: Label | None = Field(None, description="Label of the trials to compare with; default: any.")

    def limits(self) -> GateLimits:
        """Convert to the library's type."""
        return GateLimits(
            self.max_step_time_s, self.max_loss_difference, self.max_regression, self.max_prediction_error
        )


class TrialBrief(Response):
    """A trial: prediction and measurement."""

    id: str = Field(examples=["tri-0a1b2c3d4e5f60718293a4b5c6d7e8f9"])
    strategy_id: str
    baseline: str | None
    options: Document
    predicted: Document = Field(
        description="step_time_s, comm_bytes_per_device, memory_bytes_per_device. If simulated_step_time_s is "
        "present (earlier releases), it is the predicted step time, and step_time_s is a sum without "
        "overlap."
    )
    measured_step_time_s: float | None
    relative_error: float | None = Field(description="(measured - predicted) / measured step time.")
    label: str | None
    passed: bool | None = Field(description="Whether all gates passed; null until evaluated.")
    job: Job
    created_at: datetime


class Trial(TrialBrief):
    """A trial with everything that was measured."""

    gates: list[Document] | None = Field(
        description="Evaluated gates: name, limit, value (null if there was nothing to compare with, which "
        "passes), passed, sentence, and for max_regression the trials compared with."
    )
    result: Document | None = Field(
        description=(
            "Report of the trial: step times, memory, losses, collectives, and its correction of the calibration."
        )
    )
