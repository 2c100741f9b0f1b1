"""Trials: measured runs, stored with the prediction."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.orm import Session, undefer

from autosbp.errors import InputError
from autosbp.graph.precision import require_executor
from autosbp.plan.plan import predicted_step_s, upgrade_document
from autosbp.plan.schedules import require_runtime
from autosbp.sandbox.regular_files import read_end
from autosbp.service import tracing
from autosbp.service.models import CalibrationRow, JobRow, ModelRow, StrategyRow, TrialRow
from autosbp.service.request_state import AppState
from autosbp.service.schemas._base import Document
from autosbp.service.schemas.trials import TrialRequest
from autosbp.service.services import jobs, quotas, trial_feedback
from autosbp.service.services._list_page import ListPage
from autosbp.service.services._queries import Paged, existing, page, require, require_referenced
from autosbp.service.settings import Settings

_PREDICTED = ("step_time_s", "comm_bytes_per_device", "memory_bytes_per_device")
_LOG_NAME = "ranks.log"
_CUT_NOTE_BYTES = 256  # for the note that replaces the cut part of a log
_LOAD_DEFERRED = (undefer(TrialRow.result), undefer(TrialRow.gates))


def create(state: AppState, request: TrialRequest) -> JobRow:
    """Store a trial and queue its job."""
    with state.database.write() as session:
        if (job := jobs.find_retried(state, session)) is not None:
            return job
        quotas.require_room(session, state.settings, quotas.FILES, 0)
        strategy = require_referenced(session, StrategyRow, request.strategy_id, "strategy_id", "strategy")
        plan = upgrade_document(strategy.plan)
        require_executor(plan.get("precision"))
        subject = plan if request.baseline is None else _baseline(plan, request.baseline)
        runs = plan["baseline_strategies"][request.baseline] if request.baseline else plan["strategy"]
        if "pipeline" in runs:
            require_runtime(runs["pipeline"]["schedule"])
        trial_id = state.new_id("tri")
        job = jobs.submit(state, session, "trial", {"trial_id": trial_id}, f"/v1/trials/{trial_id}")
        row = TrialRow(
            id=trial_id,
            strategy_id=strategy.id,
            job_id=job.id,
            baseline=request.baseline,
            options={"steps": request.steps, "warmup": request.warmup, "seed": request.seed},
            label=request.label,
            predicted={key: subject[key] for key in _PREDICTED},
        )
        session.add(row)
        return job


def _baseline(plan: Document, name: str) -> Document:
    runnable = plan["baseline_strategies"]
    if name not in runnable:
        known = ", ".join(sorted(runnable)) or "none"
        raise InputError("baseline", name, f"expected one of the strategy's feasible baselines: {known}")
    costs: Document = plan["baselines"][name]
    return costs


def prepare(settings: Settings, session: Session, job: JobRow) -> Document:
    """Inputs of a trial: plan, graph, work folder. ``key`` identifies the attempt for launchers."""
    trial = existing(session, TrialRow, job.payload["trial_id"])
    strategy = existing(session, StrategyRow, trial.strategy_id)
    calibration = existing(session, CalibrationRow, strategy.calibration_id) if strategy.calibration_id else None
    attempt = jobs.attempt_number(settings, job)
    return {
        "plan": strategy.plan,
        "baseline": trial.baseline,
        "graph": existing(session, ModelRow, strategy.model_id).document,
        "calibration": calibration.document if calibration else None,
        "options": trial.options,
        "workdir": str(folder(settings, trial.id)),
        "timeout_s": settings.trial_timeout_s,
        "launching": settings.launching,
        "sandbox": settings.confinement.to_dict(),
        "key": f"{job.id}-{attempt}",
        "attempt": attempt,
    }


def store(session: Session, job: JobRow, found: Document) -> Document:
    """Store the trial's measurements, and the corrected version of its calibration."""
    trial = existing(session, TrialRow, job.payload["trial_id"])
    measured_s = float(found["step_time_s"]["median"])
    trial.result, trial.measured_step_time_s = found, measured_s
    trial.relative_error = (measured_s - predicted_step_s(trial.predicted)) / measured_s
    with tracing.span("feedback"):
        taught = trial_feedback.store_corrected_version(
            session, existing(session, StrategyRow, trial.strategy_id).calibration_id
        )
    return {"trial_id": trial.id, **({"calibration_id": taught.id} if taught else {})}


def folder(settings: Settings, trial_id: str) -> Path:
    """The trial's own folder in the data folder."""
    return (settings.data_dir / "trials" / trial_id).resolve()


def read_log(state: AppState, trial_id: str) -> bytes:
    """Output of the ranks of the trial's last attempt; empty before it begins.

    With a launcher the log lies in the folder that the nodes share.
    """
    trial = get(state, trial_id)
    attempts = state.settings.launches.glob(f"{trial.job_id}-*/work/{_LOG_NAME}")
    paths = [folder(state.settings, trial.id) / _LOG_NAME, *attempts]
    last = max((path for path in paths if path.exists()), key=lambda path: path.lstat().st_mtime, default=None)
    try:
        return b"" if last is None else read_end(last, state.settings.log_bytes + _CUT_NOTE_BYTES)
    except OSError:  # deleted, or a symbolic link
        return b""


def get(state: AppState, trial_id: str) -> TrialRow:
    """Return a trial with its result, or raise 404."""
    with state.database.read() as session:
        return require(session, TrialRow, trial_id, "trial", *_LOAD_DEFERRED)


def listing(state: AppState, window: ListPage, job_state: str | None, /, **equal: object) -> Paged[TrialRow]:
    """Return a page of trials."""
    where = () if job_state is None else (TrialRow.job.has(JobRow.state == job_state),)
    with state.database.read() as session:
        return page(session, TrialRow, window, where, **equal)
