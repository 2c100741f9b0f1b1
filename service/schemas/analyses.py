"""Analyses at the edge."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from autosbp.search.what_if import FACTOR
from autosbp.search.why import MOST
from service.schemas._base import NO_NUL, Document, Request, Response
from service.schemas.jobs import Job

AnalysisKind = Literal["why", "what-if"]


class WhyRequest(Request):
    """Ask what other layouts of an op would cost, with all else chosen anew."""

    op: str = Field(
        min_length=1,
        max_length=512,
        pattern=NO_NUL,
        description="An op, a parameter, or a pattern such as h.*.mlp.weight.",
    )
    most: int = Field(default=MOST, ge=1, le=1000, description="Layouts of an op that are costed.")


class WhatIfRequest(Request):
    """Ask what faster links, a faster device or more memory would buy."""

    factor: float = Field(default=FACTOR, gt=1, le=1000, description="How many times better each is made.")


class AnalysisBrief(Response):
    """A question about a strategy."""

    id: str = Field(examples=["ana-0a1b2c3d4e5f6071"])
    strategy_id: str
    kind: AnalysisKind
    options: Document
    job: Job
    created_at: datetime


class Analysis(AnalysisBrief):
    """A question with its answer."""

    result: Document | None = Field(description="What autosbp explain --why or --what-if prints as JSON.")


class Export(Response):
    """A strategy in the form of another tool."""

    plan_id: str
    target: str
    files: dict[str, str] = Field(description="File names, and what they hold.")
