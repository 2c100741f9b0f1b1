"""Settings of the service, read from ``AUTOSBP_*`` environment variables."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveFloat, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from autosbp.errors import InputError
from autosbp.sandbox import Sandbox
from autosbp.service.db import file_of
from autosbp.service.http.root_path import check_root_path
from autosbp.service.strict_json import MAX_VALUES


def read_settings(**given: Any) -> Settings:
    """Return the settings.

    Args:
        **given: values that override the environment; None counts as not given. Other settings come from ``AUTOSBP_*``
            variables.

    Raises:
        InputError: a value is invalid.
    """
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(".".join(map(str, first["loc"])), first["input"], first["msg"]) from None
    except SettingsError as error:  # a list setting that is not JSON
        raise InputError(
            "settings", str(error), "expected a valid value; see docs/reference/configuration.md"
        ) from None


class Settings(BaseSettings):
    """Every setting has a default that works on a laptop; the environment or the command line overrides it."""

    model_config = SettingsConfigDict(env_prefix="AUTOSBP_", extra="ignore", frozen=True)

    data_dir: Path = Field(
        default=Path("autosbp-data"), description="Folder of the default database, logs and trial files."
    )
    database_url: str | None = Field(
        default=None, description="SQLAlchemy URL; the default is a SQLite file in data_dir."
    )
    lock_timeout_s: float = Field(
        default=10.0, gt=0, description="Seconds to wait for a database lock before answering 503."
    )
    host: str = Field(
        default="127.0.0.1", description="Address to listen on; addresses other than loopback require API keys."
    )
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    max_body_bytes: int = Field(
        default=64 * 2**20,
        ge=1024,
        description="Maximum body size of models and calibrations (413); other routes have lower limits.",
    )
    body_budget_bytes: int = Field(
        default=128 * 2**20,
        ge=1024,
        description="Maximum total size of request bodies in memory, at least that of the largest body; half of it "
        "per tenant (503).",
    )
    max_depth: int = Field(default=64, ge=8, description="Maximum nesting depth of JSON bodies (422).")
    max_values: int = Field(
        default=MAX_VALUES,
        ge=1024,
        description="Maximum number of commas, colons and opening brackets in JSON bodies (422).",
    )
    max_ops: int = Field(default=100_000, ge=1, description="Maximum number of ops per graph (422).")
    max_queued_jobs: int = Field(default=1024, ge=1, description="Maximum number of waiting jobs (429).")
    max_queued_jobs_of_tenant: int = Field(default=256, ge=1, description="Per-tenant limit of the setting above.")
    max_queued_s: float = Field(
        default=57_600.0,
        gt=0,
        description="Maximum total seconds of waiting jobs, counting the time limits of searches and 20 s for "
        "other jobs (429).",
    )
    max_queued_s_of_tenant: float = Field(default=14_400.0, gt=0, description="Per-tenant limit of the setting above.")
    max_running_jobs_of_tenant: int | None = Field(
        default=None,
        ge=1,
        description="Maximum number of running jobs per tenant and queue, over all processes; default: no limit.",
    )
    tenant_weights: dict[str, PositiveFloat] = Field(
        default={},
        description=(
            'Scheduling weights of tenants other than 1, as JSON, such as {"lab": 2} for twice the share of others.'
        ),
    )
    max_connections: int = Field(
        default=4096,
        ge=16,
        description=(
            "Maximum number of connections, or as many as the open-file limit allows; beyond that the "
            "longest idle one is closed."
        ),
    )
    max_connections_of_address: int = Field(
        default=256,
        ge=1,
        description=(
            "Maximum number of connections per address; behind a trusted proxy, of concurrent requests per client."
        ),
    )
    trusted_proxies: str = Field(
        default="",
        description="Comma-separated addresses and networks of reverse proxies whose X-Forwarded-For and "
        "X-Forwarded-Proto are trusted.",
    )
    root_path: str = Field(
        default="",
        description=(
            "URL path prefix under which a reverse proxy serves this service, such as /planner; default: none."
        ),
    )
    max_streams: int = Field(default=1024, ge=1, description="Maximum number of open event streams (429).")
    max_streams_of_tenant: int = Field(default=512, ge=1, description="Per-tenant limit of the setting above.")
    operator_tenant: str = Field(
        default="default",
        description=(
            "Tenant whose admins see the metrics of the whole service and the audit log of unauthenticated calls."
        ),
    )
    require_keys: bool = Field(default=False, description="Require API keys even before the first one exists.")
    rate_limit_per_s: float = Field(
        default=500.0, gt=0, description="Maximum requests per second per API key, or per address without keys (429)."
    )
    rate_limit_burst: float = Field(default=1000.0, ge=1, description="Burst size of the rate limit.")
    wrong_keys_burst: float = Field(
        default=30.0,
        ge=1,
        description=("Number of wrong keys an address may send before it is limited to one per second."),
    )
    idempotency_ttl_s: float = Field(
        default=86_400.0, gt=0, description="Seconds to keep the response of an Idempotency-Key."
    )
    audit_days: float = Field(default=365.0, gt=0, description="Days to keep audit log entries.")
    audit_strangers: int = Field(
        default=100_000,
        ge=1,
        description=("Maximum number of audit log entries of unauthenticated calls; the newest are kept."),
    )
    files_days: float = Field(default=90.0, gt=0, description="Days to keep files of ended trials and calibrations.")
    files_bytes: int = Field(
        default=20 * 2**30, ge=0, description="Maximum total size of these files; beyond that the oldest are removed."
    )
    job_files_bytes: int = Field(
        default=64 * 2**20,
        ge=2**16,
        description="Maximum size of stored files per trial or calibration; longer logs lose their middle.",
    )
    files_bytes_of_tenant: int = Field(default=10 * 2**30, ge=0, description="Quota per tenant for such files (507).")
    documents_bytes_of_tenant: int = Field(
        default=2 * 2**30,
        ge=0,
        description=(
            "Quota per tenant for models and calibrations (507); a single larger document is answered with 413."
        ),
    )
    artifacts: str | None = Field(
        default=None,
        description="Folder or object store path such as s3://BUCKET/PATH for files of trials and calibrations; "
        "default: in data_dir.",
    )
    min_free_bytes: int = Field(
        default=100 * 2**20,
        ge=0,
        description=("Minimum free space in data_dir; with less, the service reports that it is not ready."),
    )
    threads: int = Field(
        default=6, ge=2, le=40, description="Number of request threads; more than a few contend with each other."
    )
    access_log: bool = Field(default=True, description="Log every request.")
    otel: bool = Field(
        default=False,
        description=("Send traces of requests and jobs, configured by OTEL_* variables; requires the extra otel."),
    )
    worker: bool = Field(
        default=True,
        description=("Run jobs in this process; if false, other processes must run them (PostgreSQL only)."),
    )
    plan_jobs: int = Field(
        default=1, ge=1, description="Number of concurrent searches, captures and analyses per process."
    )
    measure_jobs: int = Field(default=1, ge=1, description="Number of concurrent calibrations and trials per process.")
    measure_alone: bool = Field(
        default=True, description="Run no other jobs in the process during measurements on its machine."
    )
    worker_lease_s: float = Field(
        default=20.0, ge=1, description="Seconds without a heartbeat after which a worker is considered dead."
    )
    job_memory_bytes: int = Field(
        default=32 * 2**30, ge=2**30, description="Address space limit of a search, capture or analysis process."
    )
    job_cpu_s: float = Field(default=14_400.0, gt=0, description="CPU time limit in seconds of such a process.")
    job_timeout_s: float = Field(default=7200.0, gt=0, description="Wall time limit in seconds of such a process.")
    max_attempts: int = Field(
        default=3, ge=1, description="Maximum number of starts of a job; after that an interruption fails it."
    )
    cancel_grace_s: float = Field(
        default=10.0, ge=0, description="Seconds for a cancelled job to stop before it is killed."
    )
    launcher: Literal["local", "slurm", "ray", "kubernetes"] | None = Field(
        default=None,
        description="Where trials and calibrations run: by default as ranks on this machine that end with the "
        "service; local: as ranks on this machine that survive a restart of the service; or on a "
        "cluster.",
    )
    launcher_dir: Path | None = Field(
        default=None, description="Folder shared by the cluster's nodes; default: in data_dir."
    )
    launcher_python: str | None = Field(
        default=None,
        description=(
            "Python interpreter on the cluster's nodes, with autosbp installed; default: that of the service."
        ),
    )
    launcher_interface: str | None = Field(
        default=None,
        description=("Network interface for communication between ranks; default with local: the loopback interface."),
    )
    queue_timeout_s: float = Field(
        default=86_400.0,
        gt=0,
        description="Maximum seconds for a trial or calibration to wait for the cluster.",
    )
    slurm_options: list[str] = Field(
        default=[], description='Additional sbatch options as JSON, such as ["--partition=gpu"].'
    )
    ray_url: str = Field(default="http://127.0.0.1:8265", description="URL of the Ray cluster's dashboard.")
    kubernetes_url: str = Field(default="https://kubernetes.default.svc", description="URL of the Kubernetes API.")
    kubernetes_namespace: str = Field(default="default", description="Namespace in which Jobs are created.")
    kubernetes_image: str = Field(default="", description="Container image of the pods, with autosbp installed.")
    kubernetes_claim: str = Field(default="", description="PersistentVolumeClaim that holds the shared folder.")
    kubernetes_mount: Path | None = Field(
        default=None,
        description="Mount path of the claim in pods and in the service; default: the shared folder.",
    )
    kubernetes_memory: str = Field(default="", description="Memory limit of a pod, such as 64Gi; default: no limit.")
    kubernetes_account_dir: Path = Field(
        default=Path("/var/run/secrets/kubernetes.io/serviceaccount"),
        description="Folder with the service account files token and ca.crt.",
    )
    sandbox: Literal["bubblewrap", "limits", "none"] | None = Field(
        default=None,
        description="Sandbox of ranks; default: bubblewrap if available, else limits.",
    )
    rank_user: str | None = Field(default=None, description="User that runs the ranks, if the service runs as root.")
    rank_memory_bytes: int = Field(
        default=32 * 2**30, ge=2**31, description="Address space limit of rank processes without a GPU."
    )
    rank_file_bytes: int = Field(default=4 * 2**30, ge=2**20, description="Maximum size of a file written by ranks.")
    rank_variables: list[str] = Field(
        default=[],
        description='Additional environment variables passed to job processes and ranks, as JSON, such as ["HTTPS_PROXY"].',
    )
    log_bytes: int = Field(
        default=8 * 2**20,
        ge=2**16,
        description="Maximum log size of the ranks of a node: first and last bytes are kept.",
    )
    trial_timeout_s: float = Field(default=600.0, gt=0, description="Wall time limit in seconds of a trial.")
    calibration_timeout_s: float = Field(
        default=1800.0, gt=0, description=("Wall time limit in seconds of a calibration.")
    )
    max_time_limit_s: float = Field(default=3600.0, gt=0, description="Maximum time limit in seconds of a search.")

    testing: bool = Field(default=False, description="Obey crash_at.")
    crash_at: str | None = Field(default=None, description="For tests: KIND:POINT at which to crash.")

    @property
    def measures_here(self) -> bool:
        """Whether the ranks of trials and calibrations run on the service's machine."""
        return self.launcher in (None, "local")

    @property
    def launching(self) -> dict[str, Any] | None:
        """Configuration for ``autosbp.service.launchers._from_settings``; None for ranks that end with the service."""
        if self.launcher is None:
            return None
        root = self.launches
        return {
            "name": self.launcher,
            "root": str(root),
            "sandbox": replace(self.confinement, user=self.rank_user if self.launcher == "local" else None).to_dict(),
            "python": self.launcher_python,
            "interface": self.launcher_interface,
            "queue_timeout_s": self.queue_timeout_s,
            "slurm_options": self.slurm_options,
            "ray_url": self.ray_url,
            "kubernetes": {
                "url": self.kubernetes_url,
                "namespace": self.kubernetes_namespace,
                "image": self.kubernetes_image,
                "claim": self.kubernetes_claim,
                "mount": str(self.kubernetes_mount or root),
                "memory": self.kubernetes_memory,
                "account_dir": str(self.kubernetes_account_dir),
            },
        }

    @property
    def confinement(self) -> Sandbox:
        """How ranks on this machine are confined."""
        paths = [self.data_dir.resolve(), self.launches]
        with suppress(ArgumentError, ValueError):  # reported when the database is opened
            if (file := file_of(make_url(self.url))) is not None:
                paths += [Path(f"{file}{end}") for end in ("", "-wal", "-shm")]
        if "://" not in self.artifacts_url:
            paths.append(Path(self.artifacts_url).resolve())
        return Sandbox(
            self.sandbox,
            self.rank_user,
            self.rank_memory_bytes,
            self.rank_file_bytes,
            self.log_bytes,
            tuple(self.rank_variables),
            tuple(map(str, paths)),
        )

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, given: str) -> str:
        for each in _parts(given):
            ip_network(each)  # its error names the value
        return given

    @field_validator("root_path")
    @classmethod
    def _is_path(cls, given: str) -> str:
        return check_root_path(given)

    @property
    def proxies(self) -> tuple[str, ...]:
        """The trusted proxies as a tuple."""
        return _parts(self.trusted_proxies)

    @property
    def launches(self) -> Path:
        """The folder that the cluster's nodes share."""
        return (self.launcher_dir or self.data_dir / "launches").resolve()

    @property
    def artifacts_url(self) -> str:
        """Location of the artifacts, with the default filled in."""
        return self.artifacts or str(self.data_dir.resolve() / "artifacts")

    @property
    def url(self) -> str:
        """The database URL, with the default filled in."""
        return self.database_url or f"sqlite:///{self.data_dir.resolve() / 'autosbp.db'}"


def _parts(given: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in given.split(",") if each.strip())
