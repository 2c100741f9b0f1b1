"""Trials at the edge."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from service.schemas._base import NO_NUL, BodyId, Document, Request, Response
from service.schemas.jobs import Job

Label = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]


class TrialRequest(Request):
    """Ask for a measured run of a strategy, or of one of its baselines."""

    strategy_id: BodyId
    baseline: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")] | None = None
    steps: int = Field(20, ge=1, le=10_000, description="Measured steps.")
    warmup: int = Field(3, ge=1, le=1000, description="Steps before the measured ones.")
    seed: int = Field(0, ge=0, lt=2**31)
    label: Label | None = Field(None, description="What it is run for, such as a branch: trials are listed by it.")


class GateVerdict(Request):
    """What came of one limit on what a trial measured."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$", examples=["max_regression"])
    limit: float
    value: float | None = Field(description="null where there was nothing to compare with, which passes.")
    passed: bool
    sentence: str = Field(max_length=2000, pattern=NO_NUL)


class VerdictRequest(Request):
    """What came of a trial's gates."""

    gates: list[GateVerdict] = Field(min_length=1, max_length=32)


class TrialBrief(Response):
    """A trial, predicted against measured."""

    id: str = Field(examples=["tri-0a1b2c3d4e5f6071"])
    strategy_id: str
    baseline: str | None
    options: Document
    predicted: Document = Field(
        description="step_time_s, comm_bytes_per_device, memory_bytes_per_device. Where simulated_step_time_s is among them, "
        "as earlier releases stored it, that is the predicted step, and step_time_s a sum in which nothing overlaps."
    )
    measured_step_time_s: float | None
    relative_error: float | None = Field(description="(measured - predicted) / measured step time.")
    label: str | None
    passed: bool | None = Field(description="Whether no gate failed; null until it is judged.")
    job: Job
    created_at: datetime


class Trial(TrialBrief):
    """A trial with everything that was measured."""

    gates: list[Document] | None = Field(description="What it was judged by, as POST :judge was told.")
    result: Document | None = Field(
        description="The trial's own report: step times, memory, losses, collectives, and what it teaches its calibration."
    )
