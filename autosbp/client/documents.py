"""What the service answers with: written by scripts/openapi from docs/openapi.json, to which a test holds it."""

from __future__ import annotations

from typing import Any, Literal, TypedDict


class Analysis(TypedDict):
    """A question about a strategy, with its answer."""

    id: str
    strategy_id: str
    kind: Literal["why", "what-if"]
    options: dict[str, Any]
    job: Job
    created_at: str
    result: dict[str, Any] | None


class AnalysisBrief(TypedDict):
    """A question about a strategy."""

    id: str
    strategy_id: str
    kind: Literal["why", "what-if"]
    options: dict[str, Any]
    job: Job
    created_at: str


class Artifact(TypedDict):
    """A file that a trial or a calibration left."""

    id: str
    job_id: str
    name: str
    num_bytes: int
    sha256: str
    created_at: str


class AuditEntry(TypedDict):
    """A call that changed something or was refused."""

    id: str
    created_at: str
    caller: str | None
    address: str
    method: str
    path: str
    status: int
    request_id: str
    location: str | None


class Calibration(TypedDict):
    """A stored calibration, without its measurements."""

    id: str
    cluster_id: str
    job_id: str | None
    backend: str
    complete: bool
    num_collectives: int
    num_ops: int
    root_id: str
    num_trials: int
    newest_id: str
    created_at: str


class CalibrationDetail(TypedDict):
    """A stored calibration with its document."""

    id: str
    cluster_id: str
    job_id: str | None
    backend: str
    complete: bool
    num_collectives: int
    num_ops: int
    root_id: str
    num_trials: int
    newest_id: str
    created_at: str
    document: dict[str, Any]


class Cluster(TypedDict):
    """A stored cluster."""

    id: str
    name: str
    cluster_hash: str
    num_devices: int
    document: dict[str, Any]
    created_at: str


class Export(TypedDict):
    """A strategy in the format of another tool."""

    plan_id: str
    target: str
    files: dict[str, str]


class Job(TypedDict):
    """A durable background job."""

    id: str
    kind: Literal["capture", "calibrate", "search", "trial", "tune", "why", "what-if"]
    state: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    resource: str | None
    progress: float | None
    message: str
    figures: dict[str, Any]
    problem: dict[str, Any] | None
    result: dict[str, Any] | None
    cancel_requested: bool
    attempts: int
    revision: int
    created_at: str
    started_at: str | None
    finished_at: str | None


class Key(TypedDict):
    """An API key, without its secret text."""

    id: str
    name: str
    prefix: str
    scopes: list[Literal["read", "search", "trial", "calibrate", "admin"]]
    state: Literal["valid", "expired", "revoked"]
    created_by: str | None
    created_at: str
    expires_at: str | None
    revoked_at: str | None


class Model(TypedDict):
    """A stored model graph, without the graph itself."""

    id: str
    name: str
    source: str
    graph_hash: str
    summary: dict[str, Any]
    created_at: str


class NewKey(TypedDict):
    """A newly created key with its secret text."""

    id: str
    name: str
    prefix: str
    scopes: list[Literal["read", "search", "trial", "calibrate", "admin"]]
    state: Literal["valid", "expired", "revoked"]
    created_by: str | None
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    secret: str | None


class Search(TypedDict):
    """A search, its job, and the strategy that it found."""

    id: str
    model_id: str
    cluster_id: str
    calibration_id: str | None
    options: dict[str, Any]
    start_id: str | None
    num_points: int | None
    strategy_id: str | None
    front: list[str] | None
    mode: Literal["plan", "tune"]
    tuning: dict[str, Any] | None
    job: Job
    created_at: str


class Strategy(TypedDict):
    """Summary of a stored strategy; GET /v1/strategies/{strategy_id} returns the complete plan."""

    id: str
    model_id: str
    cluster_id: str
    calibration_id: str | None
    searcher: str
    step_time_s: float
    comm_bytes_per_device: int
    memory_bytes_per_device: int
    created_at: str


class Trial(TypedDict):
    """A trial with everything that was measured."""

    id: str
    strategy_id: str
    baseline: str | None
    options: dict[str, Any]
    predicted: dict[str, Any]
    measured_step_time_s: float | None
    relative_error: float | None
    label: str | None
    passed: bool | None
    job: Job
    created_at: str
    gates: list[dict[str, Any]] | None
    result: dict[str, Any] | None


class TrialBrief(TypedDict):
    """A trial: prediction and measurement."""

    id: str
    strategy_id: str
    baseline: str | None
    options: dict[str, Any]
    predicted: dict[str, Any]
    measured_step_time_s: float | None
    relative_error: float | None
    label: str | None
    passed: bool | None
    job: Job
    created_at: str
