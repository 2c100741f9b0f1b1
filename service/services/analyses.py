"""Analyses: why an op has its layout, and what better hardware would buy. Each is a job; an equal one is answered from the
store."""

from __future__ import annotations

from sqlalchemy.orm import Session, undefer

import autosbp
from autosbp.jsonio import digest
from service.models import AnalysisRow, CalibrationRow, JobRow, ModelRow, StrategyRow
from service.schemas._base import Document
from service.services import jobs
from service.services._store import Paged, existing, find, page, require
from service.services._window import Window
from service.state import State


def create(state: State, strategy_id: str, kind: str, options: Document) -> tuple[JobRow, bool]:
    """Ask a question about a strategy; the job, and whether it is a new one. One that failed or was cancelled is asked
    again."""
    asked = {"strategy": strategy_id, "kind": kind, "options": options, "release": autosbp.__version__}
    analysis_id = f"ana-{digest(asked)}"
    with state.database.write() as session:
        require(session, StrategyRow, strategy_id, "strategy")
        if (job := jobs.again(state, session)) is not None:
            return job, True
        row = find(session, AnalysisRow, analysis_id)
        if row is not None and row.job.state in ("queued", "running", "succeeded") and not row.job.cancel_requested:
            return row.job, False
        job = jobs.submit(state, session, kind, {"analysis_id": analysis_id}, f"/v1/analyses/{analysis_id}")
        if row is None:
            session.add(AnalysisRow(id=analysis_id, strategy_id=strategy_id, job_id=job.id, kind=kind, options=options))
        else:
            row.job_id = job.id
        return job, True


def prepare(session: Session, job: JobRow) -> Document:
    """Inputs of an analysis: the plan with its graph and calibration, and the question."""
    analysis = existing(session, AnalysisRow, job.payload["analysis_id"])
    strategy = existing(session, StrategyRow, analysis.strategy_id)
    known = strategy.calibration_id
    return {
        "plan": strategy.plan,
        "graph": existing(session, ModelRow, strategy.model_id).document,
        "calibration": None if known is None else existing(session, CalibrationRow, known).document,
        "options": analysis.options,
    }


def store(session: Session, job: JobRow, found: Document) -> Document:
    """Keep the answer."""
    analysis = existing(session, AnalysisRow, job.payload["analysis_id"])
    analysis.result = found
    return {"analysis_id": analysis.id}


def get(state: State, analysis_id: str) -> AnalysisRow:
    """One analysis with its answer, or 404."""
    with state.database.read() as session:
        return require(session, AnalysisRow, analysis_id, "analysis", undefer(AnalysisRow.result))


def listing(state: State, window: Window, /, **equal: object) -> Paged[AnalysisRow]:
    """A page of analyses."""
    with state.database.read() as session:
        return page(session, AnalysisRow, window, **equal)
