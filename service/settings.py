"""Settings of the service, read from ``AUTOSBP_*`` environment variables."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from autosbp.errors import InputError
from service.body import MAX_VALUES
from service.edge.prefix import checked


def read_settings(**given: Any) -> Settings:
    """What is given, and what is None or left out from AUTOSBP_* variables; ``InputError``."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(".".join(map(str, first["loc"])), first["input"], first["msg"]) from None
    except SettingsError as error:  # a list that is no JSON
        raise InputError("settings", str(error), "values as service/settings.py has them are expected") from None


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
        default=10.0, gt=0, description="Seconds to wait for another's lock in the database before a 503."
    )
    host: str = Field(
        default="127.0.0.1", description="Address to listen on; any but a loopback address needs API keys."
    )
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    max_body_bytes: int = Field(default=64 * 2**20, ge=1024, description="Larger request bodies are answered with 413.")
    max_depth: int = Field(default=64, ge=8, description="JSON bodies nested deeper are answered with 422.")
    max_values: int = Field(
        default=MAX_VALUES,
        ge=1024,
        description="JSON bodies of more commas, colons and opening brackets are answered with 422.",
    )
    max_ops: int = Field(default=100_000, ge=1, description="Graphs of more ops are answered with 422.")
    max_queued_jobs: int = Field(default=1024, ge=1, description="More waiting jobs than this are answered with 429.")
    max_queued_jobs_of_tenant: int = Field(default=256, ge=1, description="The same for each tenant.")
    max_connections: int = Field(
        default=4096,
        ge=16,
        description="Connections at once, or as many as open files allow; past that the longest idle one is closed.",
    )
    trusted_proxies: str = Field(
        default="",
        description="Addresses and networks, with commas between them, of reverse proxies whose X-Forwarded-For and "
        "X-Forwarded-Proto say who calls, and how.",
    )
    root_path: str = Field(
        default="", description="Path below which a reverse proxy has the service, such as /planner; by default none."
    )
    max_streams: int = Field(default=1024, ge=1, description="More event streams at once are answered with 429.")
    max_streams_of_tenant: int = Field(default=512, ge=1, description="The same for each tenant.")
    operator_tenant: str = Field(
        default="default",
        description="The tenant whose admins see the metrics of the whole service, not of theirs alone, and who was kept out.",
    )
    require_keys: bool = Field(default=False, description="Ask for API keys also before the first one was made.")
    rate_limit_per_s: float = Field(
        default=500.0, gt=0, description="Requests a second of one API key (or address); more are answered with 429."
    )
    rate_limit_burst: float = Field(default=1000.0, ge=1, description="Requests that may come at once.")
    wrong_keys_burst: float = Field(
        default=30.0, ge=1, description="Wrong keys that an address may send at once, before it has one try a second."
    )
    idempotency_ttl_s: float = Field(
        default=86_400.0, gt=0, description="Seconds for which an answer under an Idempotency-Key is kept."
    )
    audit_days: float = Field(default=365.0, gt=0, description="Days for which the audit log is kept.")
    audit_strangers: int = Field(
        default=100_000, ge=1, description="Newest entries of strangers' calls that the audit log keeps."
    )
    files_days: float = Field(
        default=90.0, gt=0, description="Days for which the files of ended trials and calibrations are kept."
    )
    files_bytes: int = Field(
        default=20 * 2**30, ge=0, description="Bytes that they may take together; past that the oldest are removed."
    )
    artifacts: str | None = Field(
        default=None,
        description="Folder, or path of an object store such as s3://BUCKET/PATH, for what trials and calibrations leave; "
        "by default in data_dir.",
    )
    min_free_bytes: int = Field(
        default=100 * 2**20, ge=0, description="With less room in data_dir the service says that it is not ready."
    )
    threads: int = Field(
        default=6, ge=2, le=40, description="Requests that are worked on at once; more than a few wait for each other."
    )
    access_log: bool = Field(default=True, description="Log a line for each request.")
    otel: bool = Field(
        default=False, description="Send traces of requests and jobs as OTEL_* variables say; needs the extra otel."
    )
    worker: bool = Field(default=True, description="Work on jobs; without, other processes must (PostgreSQL).")
    plan_jobs: int = Field(
        default=1, ge=1, description="Searches, captures and analyses that run at once in a process."
    )
    measure_jobs: int = Field(default=1, ge=1, description="Calibrations and trials that run at once in a process.")
    measure_alone: bool = Field(
        default=True, description="Run nothing else in the process beside a measurement of its machine."
    )
    worker_lease_s: float = Field(
        default=20.0, ge=1, description="Seconds after which a worker that is not heard of is dead."
    )
    job_memory_bytes: int = Field(
        default=32 * 2**30, ge=2**30, description="Address space of the process of a search, capture or analysis."
    )
    job_cpu_s: float = Field(default=14_400.0, gt=0, description="Processor time of the same.")
    job_timeout_s: float = Field(default=7200.0, gt=0, description="Wall time of the same.")
    max_attempts: int = Field(
        default=3, ge=1, description="Times that a job is started before an interruption fails it."
    )
    cancel_grace_s: float = Field(
        default=10.0, ge=0, description="Seconds a cancelled job has to stop before it is killed."
    )
    launcher: Literal["local", "slurm", "ray", "kubernetes"] | None = Field(
        default=None,
        description="What runs trials and calibrations: by default ranks of this machine that end with the service; local: "
        "such that outlive it and are found again; or a cluster.",
    )
    launcher_dir: Path | None = Field(
        default=None, description="Folder that the cluster's nodes share; by default in data_dir."
    )
    launcher_python: str | None = Field(
        default=None, description="Python on the cluster's nodes, with autosbp installed; by default the service's own."
    )
    launcher_interface: str | None = Field(
        default=None, description="Network interface that ranks talk over; local: the loopback interface by default."
    )
    queue_timeout_s: float = Field(
        default=86_400.0,
        gt=0,
        description="Seconds that a trial or calibration may wait for the cluster before it fails.",
    )
    slurm_options: list[str] = Field(
        default=[], description='More options of sbatch, as JSON, such as ["--partition=gpu"].'
    )
    ray_url: str = Field(default="http://127.0.0.1:8265", description="Of the dashboard of the Ray cluster.")
    kubernetes_url: str = Field(default="https://kubernetes.default.svc", description="Of the cluster's API.")
    kubernetes_namespace: str = Field(default="default", description="Where Jobs are made.")
    kubernetes_image: str = Field(default="", description="Of the pods, with autosbp installed.")
    kubernetes_claim: str = Field(default="", description="PersistentVolumeClaim that holds the shared folder.")
    kubernetes_mount: Path | None = Field(
        default=None,
        description="Where pods mount the claim, as the service does; by default the shared folder itself.",
    )
    kubernetes_account_dir: Path = Field(
        default=Path("/var/run/secrets/kubernetes.io/serviceaccount"),
        description="Folder of the files token and ca.crt by which the service is known to the API.",
    )
    trial_timeout_s: float = Field(default=600.0, gt=0, description="Wall time after which a trial fails.")
    calibration_timeout_s: float = Field(default=1800.0, gt=0, description="Wall time after which a calibration fails.")
    max_time_limit_s: float = Field(default=3600.0, gt=0, description="Longest time limit that a search may ask for.")

    testing: bool = Field(default=False, description="Obey crash_at.")
    crash_at: str | None = Field(default=None, description="For tests: KIND:POINT at which to die.")

    @property
    def measures_here(self) -> bool:
        """Whether the ranks of trials and calibrations run on the service's machine."""
        return self.launcher in (None, "local")

    @property
    def launching(self) -> dict[str, Any] | None:
        """What ``service.launchers._choice`` makes the launcher of; None for ranks that end with the service."""
        if self.launcher is None:
            return None
        root = self.launches
        return {
            "name": self.launcher,
            "root": str(root),
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
                "account_dir": str(self.kubernetes_account_dir),
            },
        }

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, given: str) -> str:
        for each in _parts(given):
            ip_network(each)  # its error names the value
        return given

    @field_validator("root_path")
    @classmethod
    def _is_path(cls, given: str) -> str:
        return checked(given)

    @property
    def proxies(self) -> tuple[str, ...]:
        """The trusted proxies, one by one."""
        return _parts(self.trusted_proxies)

    @property
    def launches(self) -> Path:
        """The folder that the cluster's nodes share."""
        return (self.launcher_dir or self.data_dir / "launches").resolve()

    @property
    def artifacts_url(self) -> str:
        """Where artifacts are, with the default filled in."""
        return self.artifacts or str(self.data_dir.resolve() / "artifacts")

    @property
    def url(self) -> str:
        """The database URL, with the default filled in."""
        return self.database_url or f"sqlite:///{self.data_dir.resolve() / 'autosbp.db'}"


def _parts(given: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in given.split(",") if each.strip())
