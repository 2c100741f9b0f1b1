"""Analyses: why an op has its layout, and the gain from better hardware. Equal questions share one job and its answer."""

from __future__ import annotations

from sqlalchemy.orm import Session, undefer

import autosbp
from autosbp.service.models import ID_DIGITS, AnalysisRow, CalibrationRow, JobRow, ModelRow, StrategyRow
from autosbp.service.request_state import AppState
from autosbp.service.schemas._base import Document
from autosbp.service.services import jobs
from autosbp.service.services._list_page import ListPage
from autosbp.service.services._queries import Paged, existing, find, page, require
from autosbp.utils.json_io import digest


def create(state: AppState, strategy_id: str, kind: str, options: Document) -> tuple[JobRow, bool]:
    """Ask a question about a strategy; return the job and whether it is new. A failed or cancelled one is asked again."""
    asked = {"strategy": strategy_id, "kind": kind, "options": options, "release": autosbp.__version__}
    analysis_id = f"ana-{digest(asked, ID_DIGITS)}"
    with state.database.write() as session:
        require(session, StrategyRow, strategy_id, "strategy")
        if (job := jobs.find_retried(state, session)) is not None:
            return job, True
        row = find(session, AnalysisRow, analysis_id, lock=True)
        if row is not None and row.job.state in ("queued", "running", "succeeded") and not row.job.cancel_requested:
            return row.job, False
        job = jobs.submit(state, session, kind, {"analysis_id": analysis_id}, f"/v1/analyses/{analysis_id}")
        if row is None:
            session.add(AnalysisRow(id=analysis_id, strategy_id=strategy_id, job_id=job.id, kind=kind, options=options))
        else:
            row.job_id = job.id
        return job, True


def prepare(session: Session, job: JobRow) -> Document:
    """Inputs of an analysis: the plan with its graph and calibration, and the options."""
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
    """Store the answer."""
    analysis = existing(session, AnalysisRow, job.payload["analysis_id"])
    analysis.result = found
    return {"analysis_id": analysis.id}


def get(state: AppState, analysis_id: str) -> AnalysisRow:
    """Return an analysis with its answer, or raise 404."""
    with state.database.read() as session:
        return require(session, AnalysisRow, analysis_id, "analysis", undefer(AnalysisRow.result))


def listing(state: AppState, window: ListPage, /, **equal: object) -> Paged[AnalysisRow]:
    """Return a page of analyses."""
    with state.database.read() as session:
        return page(session, AnalysisRow, window, **equal)
