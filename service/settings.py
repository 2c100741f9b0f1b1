"""Settings of the service, read from ``AUTOSBP_*`` environment variables."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Every setting has a default that works on a laptop; the environment or the command line overrides it."""

    model_config = SettingsConfigDict(env_prefix="AUTOSBP_", extra="ignore", frozen=True)

    data_dir: Path = Field(
        default=Path("autosbp-data"), description="Folder of the default database, logs and trial files."
    )
    database_url: str | None = Field(
        default=None, description="SQLAlchemy URL; the default is a SQLite file in data_dir."
    )
    host: str = Field(
        default="127.0.0.1", description="Address to listen on. The service has no accounts: keep it private."
    )
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    max_body_bytes: int = Field(default=64 * 2**20, ge=1024, description="Larger request bodies are answered with 413.")
    max_queued_jobs: int = Field(default=256, ge=1, description="More waiting jobs than this are answered with 429.")
    max_attempts: int = Field(
        default=3, ge=1, description="Times that a job is started before an interruption fails it."
    )
    cancel_grace_s: float = Field(
        default=10.0, ge=0, description="Seconds a cancelled job has to stop before it is killed."
    )
    trial_timeout_s: float = Field(default=600.0, gt=0, description="Wall time after which a trial fails.")
    calibration_timeout_s: float = Field(default=1800.0, gt=0, description="Wall time after which a calibration fails.")
    max_time_limit_s: float = Field(default=3600.0, gt=0, description="Longest time limit that a search may ask for.")

    @property
    def url(self) -> str:
        """The database URL, with the default filled in."""
        return self.database_url or f"sqlite:///{self.data_dir.resolve() / 'autosbp.db'}"
