"""A service in its own process that has one resource of every kind, and a key with every scope."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autosbp.client import Client
from autosbp.service.auth.caller import SCOPES
from autosbp.service.db import Database
from autosbp.service.services import keys
from autosbp.service.settings import Settings

TENANT = "fuzz"
_START_S = 60.0
_NO_LIMITS = {
    "RATE_LIMIT_PER_S": 1e6,
    "RATE_LIMIT_BURST": 1e6,
    "WRONG_KEYS_BURST": 1e6,
    "MAX_QUEUED_JOBS": 10**6,
    "MAX_QUEUED_JOBS_OF_TENANT": 10**6,
}
"""Rate limits are tested elsewhere; here they would hide what they protect."""


@dataclass(frozen=True, slots=True)
class Served:
    """A running service; ``names`` maps the names of path and body parameters to ids of existing resources."""

    url: str
    key: str
    key_id: str
    names: Mapping[str, str]
    log: Path


@contextmanager
def run_service(folder: Path, database_url: str | None = None) -> Iterator[Served]:
    """Run a service on its own database.

    SQLite with a worker, or PostgreSQL without one (``serve --no-worker``) after its resources have been created.
    """
    settings = Settings(data_dir=folder / "data", database_url=database_url)
    database = Database(settings.url)
    database.upgrade()
    key = keys.create(database.of(TENANT), "fuzz", SCOPES)
    database.close()
    flag, log = folder / "real", folder / "log"
    flag.touch()
    variables = {
        "AUTOSBP_DATA_DIR": settings.data_dir,
        "AUTOSBP_PORT": 0,
        "AUTOSBP_DATABASE_URL": settings.url,
        "FUZZ_REAL": flag,
        **{f"AUTOSBP_{name}": value for name, value in _NO_LIMITS.items()},
    }
    with _running(folder, log, variables) as url:
        names = _fill(url, key.text)
        flag.unlink()
        if database_url is None:
            yield Served(url, key.text, key.row.id, names, log)
            return
    with _running(folder, log, {**variables, "AUTOSBP_WORKER": 0}) as url:
        yield Served(url, key.text, key.row.id, names, log)


@contextmanager
def _running(folder: Path, log: Path, variables: dict[str, object]) -> Iterator[str]:
    url_file = folder / "url"
    url_file.unlink(missing_ok=True)
    named = {name: str(value) for name, value in {**variables, "FUZZ_URL": url_file}.items()}
    command = [sys.executable, "-m", f"{__package__}._app"]
    with log.open("a") as file:
        process = subprocess.Popen(command, env={**os.environ, **named}, stderr=file)
    try:
        yield _url(url_file, process, log)
    finally:
        process.terminate()
        process.wait(_START_S)


def _url(url_file: Path, process: subprocess.Popen[bytes], log: Path) -> str:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        if url_file.exists() and (url := url_file.read_text()):
            return url
        time.sleep(0.02)
    raise RuntimeError(f"the service did not start:\n{log.read_text()}")


def _fill(url: str, key: str) -> dict[str, str]:
    with Client(url, key=key) as client:
        model, cluster = client.post_model(zoo="mlp-small"), client.post_cluster("local:2x2")
        job = client.wait(client.search(model, cluster, options={"global_batch": 8}))
        strategy = job.result["strategy_id"]
        analysis = client.wait(client.why(strategy, "layers.2.bias", most=1))
        trial = client.wait(client.trial(strategy))
        return {
            "model_id": model,
            "cluster_id": cluster,
            "search_id": job.result["search_id"],
            "strategy_id": strategy,
            "other_id": strategy,
            "analysis_id": analysis.result["analysis_id"],
            "trial_id": trial.result["trial_id"],
            "artifact_id": next(client.artifacts(job_id=trial.id))["id"],
            "job_id": trial.id,
        }
