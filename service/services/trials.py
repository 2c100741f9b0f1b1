"""Trials: measured runs, kept beside what was predicted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import update
from sqlalchemy.orm import Session, undefer

from autosbp.errors import InputError
from autosbp.plan import current_document, predicted_step_s
from autosbp.schedules import require_runtime
from service import tracing
from service.models import CalibrationRow, JobRow, ModelRow, StrategyRow, TrialRow
from service.problems import conflict
from service.schemas._base import Document
from service.schemas.trials import TrialRequest, VerdictRequest
from service.services import jobs, lessons
from service.services._store import Paged, existing, page, referred, require
from service.services._window import Window
from service.settings import Settings
from service.state import State

_PREDICTED = ("step_time_s", "comm_bytes_per_device", "memory_bytes_per_device")
_LOG_NAME = "log.txt"
_WHOLE = (undefer(TrialRow.result), undefer(TrialRow.gates))


def create(state: State, request: TrialRequest) -> JobRow:
    """Store a trial and queue its job."""
    with state.database.write() as session:
        if (job := jobs.again(state, session)) is not None:
            return job
        strategy = referred(session, StrategyRow, request.strategy_id, "strategy_id", "strategy")
        plan = current_document(strategy.plan)
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
        known = ", ".join(sorted(runnable)) or "there is none"
        raise InputError("baseline", name, f"a feasible baseline of the strategy is expected: {known}")
    costs: Document = plan["baselines"][name]
    return costs


def prepare(settings: Settings, session: Session, job: JobRow) -> Document:
    """Inputs of a trial: plan, graph, and where to work. ``key`` is the attempt's own, for launchers that find what they have
    submitted."""
    trial = existing(session, TrialRow, job.payload["trial_id"])
    strategy = existing(session, StrategyRow, trial.strategy_id)
    calibration = existing(session, CalibrationRow, strategy.calibration_id) if strategy.calibration_id else None
    attempt = jobs.attempt(settings, job)
    return {
        "plan": strategy.plan,
        "baseline": trial.baseline,
        "graph": existing(session, ModelRow, strategy.model_id).document,
        "calibration": calibration.document if calibration else None,
        "options": trial.options,
        "workdir": str(folder(settings, trial.id)),
        "log": str(folder(settings, trial.id) / _LOG_NAME),
        "timeout_s": settings.trial_timeout_s,
        "launching": settings.launching,
        "key": f"{job.id}-{attempt}",
        "attempt": attempt,
    }


def store(session: Session, job: JobRow, found: Document) -> Document:
    """Store what the trial measured, and the version of its calibration that it teaches."""
    trial = existing(session, TrialRow, job.payload["trial_id"])
    measured_s = float(found["step_time_s"]["median"])
    trial.result, trial.measured_step_time_s = found, measured_s
    trial.relative_error = (measured_s - predicted_step_s(trial.predicted)) / measured_s
    with tracing.span("feedback"):
        taught = lessons.teach(session, existing(session, StrategyRow, trial.strategy_id).calibration_id)
    return {"trial_id": trial.id, **({"calibration_id": taught.id} if taught else {})}


def judge(state: State, trial_id: str, request: VerdictRequest, check: Callable[[TrialRow], None]) -> TrialRow:
    """Store what came of a trial's gates; ``check`` may refuse by raising. A trial is judged once: a verdict that differs from
    the stored one is refused, so that a trial that failed does not come to pass."""
    gates = [gate.model_dump() for gate in request.gates]
    passed = all(gate.passed for gate in request.gates)
    with state.database.write() as session:
        row = require(session, TrialRow, trial_id, "trial", *_WHOLE)
        check(row)
        if row.job.state != "succeeded":
            raise conflict(f"trial {trial_id} is {row.job.state}: one that has succeeded can be judged")
        unjudged = update(TrialRow).where(TrialRow.id == trial_id, TrialRow.passed.is_(None))
        session.execute(unjudged.values(passed=passed, gates=gates), execution_options={"synchronize_session": False})
        session.refresh(row)
        if row.gates != gates:
            raise conflict(f"trial {trial_id} was judged before, and otherwise: run another")
        return row


def folder(settings: Settings, trial_id: str) -> Path:
    """The trial's own folder in the data folder."""
    return (settings.data_dir / "trials" / trial_id).resolve()


def log_file(state: State, trial_id: str) -> Path | None:
    """The trial's log, or None before the first line."""
    path = folder(state.settings, get(state, trial_id).id) / _LOG_NAME
    return path if path.is_file() else None


def get(state: State, trial_id: str) -> TrialRow:
    """One trial with its result, or 404."""
    with state.database.read() as session:
        return require(session, TrialRow, trial_id, "trial", *_WHOLE)


def listing(state: State, window: Window, job_state: str | None, /, **equal: object) -> Paged[TrialRow]:
    """A page of trials."""
    where = () if job_state is None else (TrialRow.job.has(JobRow.state == job_state),)
    with state.database.read() as session:
        return page(session, TrialRow, window, where, **equal)
