"""Rows of the lists: strategies, models, clusters, calibrations, trials, jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from autosbp.plan.plan import predicted_step_s
from autosbp.service.models import CalibrationRow, ClusterRow, JobRow, ModelRow, StrategyRow, TrialRow
from autosbp.service.web.number_format import lasted, number, seconds, signed_share, size_unit, time_unit
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
class StrategyLine:
    """A strategy in a list; amounts omit their units."""

    id: str
    heading: str
    searcher: str
    calibrated: bool
    step: str
    memory: str
    traffic: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class StrategyLines:
    """A page of strategies; each column has one unit."""

    lines: tuple[StrategyLine, ...]
    step_unit: str
    memory_unit: str
    traffic_unit: str


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
    state: str
    predicted: str
    measured: str
    error: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class TrialLines:
    """A page of trials, whose times have one unit."""

    lines: tuple[TrialLine, ...]
    unit: str


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job in a list; ``href`` is the page of its resource."""

    id: str
    what: str
    state: str
    message: str
    progress: float | None
    figure: str
    lasted: str
    href: str
    active: bool
    created_at: datetime


def strategy_lines(
    rows: Sequence[StrategyRow], models: Mapping[str, str], clusters: Mapping[str, str]
) -> StrategyLines:
    """Build a page of strategies; ``models`` and ``clusters`` are names by id."""
    times = time_unit([row.step_time_s for row in rows])
    memory = size_unit([row.memory_bytes_per_device for row in rows])
    traffic = size_unit([row.comm_bytes_per_device for row in rows])
    lines = tuple(
        StrategyLine(
            row.id,
            f"{models.get(row.model_id, row.model_id)} on {clusters.get(row.cluster_id, row.cluster_id)}",
            row.searcher,
            row.calibration_id is not None,
            times.of(row.step_time_s),
            memory.of(row.memory_bytes_per_device),
            traffic.of(row.comm_bytes_per_device),
            row.created_at,
        )
        for row in rows
    )
    return StrategyLines(lines, times.name, memory.name, traffic.name)


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


def trial_lines(rows: Sequence[TrialRow]) -> TrialLines:
    """Build a page of trials with predicted and measured times."""
    unit = time_unit([*(predicted_step_s(row.predicted) for row in rows), *(row.measured_step_time_s for row in rows)])
    lines = tuple(
        TrialLine(
            row.id,
            row.strategy_id,
            f"baseline {row.baseline}" if row.baseline else "the strategy",
            row.job.state,
            unit.of(predicted_step_s(row.predicted)),
            unit.of(row.measured_step_time_s),
            signed_share(row.relative_error),
            row.created_at,
        )
        for row in rows
    )
    return TrialLines(lines, unit.name)


def job_line(row: JobRow) -> JobLine:
    """Build a job's row."""
    return JobLine(
        row.id,
        _WHAT.get(row.kind, row.kind),
        row.state,
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
    if row.problem:
        return f"{row.problem['title']}: {row.problem['detail']}"
    if row.state == "queued":
        return "queued"
    return "cancelling" if row.cancel_requested and row.state == "running" else row.message


def job_page(row: JobRow) -> str:
    """The page of a job's resource; the job's own page if there is none yet."""
    if row.kind in ("search", "tune"):
        return f"/searches/{row.payload['search_id']}"
    if row.kind in ("why", "what-if"):
        return f"/questions/{row.payload['analysis_id']}"
    if row.resource is not None and row.resource.startswith(("/v1/models/", "/v1/calibrations/", "/v1/trials/")):
        return row.resource.removeprefix("/v1")
    return f"/jobs/{row.id}"


def _figure(figures: Mapping[str, Any]) -> str:
    best = figures.get("best_step_time_s")
    return f"best step {seconds(best)}" if best is not None else ""
