"""Rows of the lists: strategies, models, clusters, calibrations, trials, jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from autosbp.plan.plan import predicted_step_s
from autosbp.service.models import CalibrationRow, ClusterRow, JobRow, ModelRow, StrategyRow, TrialRow
from autosbp.service.services.list_details import StrategyDetails
from autosbp.service.web.number_format import lasted, number, ratio, seconds, signed_share
from autosbp.service.web.presenters.request_words import refusal_words
from autosbp.utils.formatting import count, num_bytes

_WHAT = {
    "capture": "Model capture",
    "calibrate": "Calibration",
    "search": "Search",
    "why": "Why-not question",
    "what-if": "What-if question",
    "trial": "Trial",
    "tune": "Search by trials",
}
_FINAL = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Cell:
    """A number of a list with its unit; lists sort by ``order``, and those without a value come last."""

    text: str
    order: float | None


@dataclass(frozen=True, slots=True)
class State:
    """A state in words; ``tone`` is the job state whose colour it has."""

    words: str
    tone: str


@dataclass(frozen=True, slots=True)
class StrategyLine:
    """A strategy in a list; ``gain`` is the best baseline's step time relative to its own."""

    id: str
    model: str
    cluster: str
    batch: Cell
    searcher: str
    calibrated: bool
    step: Cell
    gain: Cell
    memory: Cell
    traffic: Cell
    created_at: datetime

    @property
    def heading(self) -> str:
        """Model and cluster."""
        return f"{self.model} on {self.cluster}"


@dataclass(frozen=True, slots=True)
class ModelLine:
    """A model in a list."""

    id: str
    name: str
    source: str
    parameters: str
    size: str
    ops: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ClusterLine:
    """A cluster in a list."""

    id: str
    name: str
    devices: str
    device: str
    memory: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class CalibrationLine:
    """A calibration in a list."""

    id: str
    backend: str
    complete: bool
    collectives: str
    ops: str
    trials: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class TrialLine:
    """A trial in a list."""

    id: str
    strategy_id: str
    what: str
    model: str
    cluster: str
    batch: Cell
    label: str
    state: State
    predicted: Cell
    measured: Cell
    error: Cell
    created_at: datetime


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job in a list; ``href`` is the page of its resource."""

    id: str
    what: str
    state: State
    message: str
    progress: float | None
    figure: str
    lasted: str
    href: str
    active: bool
    created_at: datetime


def strategy_lines(rows: Sequence[StrategyRow], details: Mapping[str, StrategyDetails]) -> tuple[StrategyLine, ...]:
    """Build a page of strategies; ``details`` by their ids, without those that were just deleted."""
    return tuple(_strategy_line(row, details[row.id]) for row in rows if row.id in details)


def _strategy_line(row: StrategyRow, more: StrategyDetails) -> StrategyLine:
    return StrategyLine(
        row.id,
        more.model,
        more.cluster,
        Cell(number(more.global_batch), more.global_batch),
        row.searcher,
        row.calibration_id is not None,
        Cell(seconds(row.step_time_s), row.step_time_s),
        Cell(ratio(more.gain), more.gain),
        Cell(num_bytes(row.memory_bytes_per_device), row.memory_bytes_per_device),
        Cell(num_bytes(row.comm_bytes_per_device), row.comm_bytes_per_device),
        row.created_at,
    )


def model_line(row: ModelRow) -> ModelLine:
    """Build a model's row from its summary."""
    summary = row.summary
    return ModelLine(
        row.id,
        row.name,
        row.source,
        count(summary["num_parameters"]).strip(),
        num_bytes(summary["parameter_bytes"]),
        number(summary["num_nodes"]),
        row.created_at,
    )


def cluster_line(row: ClusterRow) -> ClusterLine:
    """Build a cluster's row from its spec."""
    device = row.document["device"]
    counts = " × ".join(str(level["count"]) for level in row.document["levels"])
    shown = f"{number(row.num_devices)} ({counts})" if len(row.document["levels"]) > 1 else number(row.num_devices)
    return ClusterLine(row.id, row.name, shown, device["name"], num_bytes(device["memory_bytes"]), row.created_at)


def calibration_line(row: CalibrationRow) -> CalibrationLine:
    """Build a calibration's row, without its document."""
    return CalibrationLine(
        row.id,
        row.backend,
        row.complete,
        number(row.num_collectives),
        number(row.num_ops),
        number(row.num_trials),
        row.created_at,
    )


def trial_lines(rows: Sequence[TrialRow], details: Mapping[str, StrategyDetails]) -> tuple[TrialLine, ...]:
    """Build a page of trials with predicted and measured times; ``details`` by the ids of their strategies."""
    return tuple(_trial_line(row, details[row.strategy_id]) for row in rows if row.strategy_id in details)


def _trial_line(row: TrialRow, more: StrategyDetails) -> TrialLine:
    predicted_s, measured_s, error = predicted_step_s(row.predicted), row.measured_step_time_s, row.relative_error
    return TrialLine(
        row.id,
        row.strategy_id,
        f"baseline {row.baseline}" if row.baseline else "the strategy",
        more.model,
        more.cluster,
        Cell(number(more.global_batch), more.global_batch),
        row.label or "",
        trial_state(row),
        Cell(seconds(predicted_s), predicted_s),
        Cell(seconds(measured_s), measured_s),
        Cell(signed_share(error), error),
        row.created_at,
    )


def trial_state(row: TrialRow) -> State:
    """State of a trial: that of its job, unless it failed a gate."""
    if row.job.state == "succeeded" and row.passed is not None:
        return State("passed its gates", "succeeded") if row.passed else _FAILED_GATE
    return State(row.job.state, row.job.state)


_FAILED_GATE = State("failed its gate", "failed")


def job_state(row: JobRow, failed_gates: Collection[str] = ()) -> State:
    """State of a job; ``failed_gates`` are ids of jobs whose trial failed a gate."""
    if row.state == "succeeded" and row.id in failed_gates:
        return _FAILED_GATE
    return State("search refused", "failed") if _refusal(row) else State(row.state, row.state)


def _refusal(row: JobRow) -> Mapping[str, Any] | None:
    """Why the search that was posted with a capture was refused."""
    return (row.result or {}).get("search_problem") if row.kind == "capture" else None


def job_line(row: JobRow, failed_gates: Collection[str] = ()) -> JobLine:
    """Build a job's row; ``failed_gates`` are ids of jobs whose trial failed a gate."""
    return JobLine(
        row.id,
        _WHAT.get(row.kind, row.kind),
        job_state(row, failed_gates),
        job_message(row),
        row.progress,
        _figure(row.figures),
        lasted(row.started_at, row.finished_at),
        job_page(row),
        row.state not in _FINAL,
        row.created_at,
    )


def job_message(row: JobRow) -> str:
    """A job's message, or why it failed."""
    if problem := row.problem or _refusal(row):
        return f"{problem['title']}: {refusal_words(problem['detail'])}"
    if row.state == "queued":
        return "queued"
    if row.state in _FINAL and row.message == row.state:
        return ""  # the state says it
    return "cancelling" if row.cancel_requested and row.state == "running" else row.message


def job_page(row: JobRow) -> str:
    """The page of a job's resource; the job's own page if there is none yet."""
    if row.kind in ("search", "tune"):
        return f"/searches/{row.payload['search_id']}"
    if row.kind == "capture" and "search" in row.payload:
        found = (row.result or {}).get("search_id")
        return f"/searches/{found}" if found else f"/plan/captures/{row.id}"
    if row.kind in ("why", "what-if"):
        return f"/questions/{row.payload['analysis_id']}"
    if row.resource is not None and row.resource.startswith(("/v1/models/", "/v1/calibrations/", "/v1/trials/")):
        return row.resource.removeprefix("/v1")
    return f"/jobs/{row.id}"


def _figure(figures: Mapping[str, Any]) -> str:
    best = figures.get("best_step_time_s")
    return f"best step {seconds(best)}" if best is not None else ""
