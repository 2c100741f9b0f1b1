"""Schemas of analyses and exports."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from autosbp.search.what_if import FACTOR
from autosbp.search.why import DEFAULT_NUM_ALTERNATIVES
from autosbp.service.schemas._base import NO_NUL, Document, Request, Response
from autosbp.service.schemas.jobs import Job

AnalysisKind = Literal["why", "what-if"]


class WhyRequest(Request):
    """Request to cost other layouts of an op, with all else optimised again."""

    op: str = Field(
        min_length=1,
        max_length=512,
        pattern=NO_NUL,
        description="Op, parameter, or name pattern such as h.*.mlp.weight.",
    )
    most: int = Field(
        default=DEFAULT_NUM_ALTERNATIVES, ge=1, le=1000, description=("Maximum number of layouts costed per op.")
    )


class WhatIfRequest(Request):
    """Request to estimate the gain from faster links, a faster device or more memory."""

    factor: float = Field(default=FACTOR, gt=1, le=1000, description="Improvement factor applied to each resource.")


class AnalysisBrief(Response):
    """A question about a strategy."""

    id: str = Field(examples=["ana-0a1b2c3d4e5f6071"])
    strategy_id: str
    kind: AnalysisKind
    options: Document
    job: Job
    created_at: datetime


class Analysis(AnalysisBrief):
    """A question about a strategy, with its answer."""

    result: Document | None = Field(description="JSON output of autosbp explain --why or --what-if.")


class Export(Response):
    """A strategy in the format of another tool."""

    plan_id: str
    target: str
    files: dict[str, str] = Field(description="File contents by name.")
