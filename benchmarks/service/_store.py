"""A service in a process of its own, on a database with many strategies."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import insert, select

from autosbp.client import Client
from service.db import Database
from service.models import JobRow, StrategyRow, WorkerRow, now
from service.services import keys
from service.settings import Settings

TENANT = "load"
_BATCH = 5000
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class Stored:
    """What the load asks for: real ids, the body of a search that has an answer, and a job that somebody works on."""

    strategy_id: str
    model_id: str
    cluster_id: str
    search: dict[str, Any]
    job_id: str


@contextmanager
def served(folder: Path, database_url: str | None) -> Iterator[tuple[str, str, Database, int]]:
    """URL and API key of a service that was just started, its database, and its process."""
    settings = Settings(data_dir=folder, database_url=database_url)
    database = Database(settings.url)
    database.upgrade()
    key = keys.create(database.of(TENANT), "load", ("read", "search", "calibrate", "admin")).text
    url_file = folder / "url"
    program = (
        "from pathlib import Path; from service.server import serve; from service.settings import Settings; "
        f"serve(Settings(), on_ready=Path({str(url_file)!r}).write_text)"
    )
    variables = {"AUTOSBP_DATA_DIR": str(folder), "AUTOSBP_PORT": "0", "AUTOSBP_DATABASE_URL": settings.url}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, **variables}, stderr=log)
    try:
        yield _ready(url_file, process), key, database, process.pid
    finally:
        process.terminate()
        process.wait(30)
        database.close()


def _ready(url_file: Path, process: subprocess.Popen[bytes]) -> str:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        if url_file.exists() and (url := url_file.read_text()):
            return url
        time.sleep(0.05)
    raise RuntimeError(f"the service did not start; see {url_file.parent / 'log'}")


def fill(url: str, key: str, database: Database, num_strategies: int) -> Stored:
    """Search one real strategy, then store so many copies of it under other ids; and a job that stays under way."""
    with Client(url, key=key) as client:
        model, cluster = client.post_model(zoo="mlp"), client.post_cluster("local:2x2")
        search: dict[str, Any] = {"model_id": model, "cluster_id": cluster, "options": {"global_batch": 8}}
        job = client.wait(client.search(model, cluster, options=search["options"]))
        strategy = job.result["strategy_id"]
        plan = client.get_strategy(strategy)
    brief = {name: plan[name] for name in ("searcher", "comm_bytes_per_device", "memory_bytes_per_device")}
    begun = now() - timedelta(days=30)
    for first in range(0, num_strategies, _BATCH):
        rows = [
            {
                **brief,
                "id": f"plan-{number:016x}",
                "tenant": TENANT,
                "created_at": begun + timedelta(seconds=number),
                "model_id": model,
                "cluster_id": cluster,
                "calibration_id": None,
                "step_time_s": plan["step_time_s"] * (1 + number / num_strategies),
                "plan": plan,
            }
            for number in range(first, min(first + _BATCH, num_strategies))
        ]
        with database.write() as session:
            session.execute(insert(StrategyRow), rows)
    with database.read() as session:
        worker = session.scalars(select(WorkerRow.id)).one()  # without one at work the job would be queued again
    with database.of(TENANT).write() as session:
        row = JobRow(id="job-followed", kind="search", payload={}, state="running", message="0", attempts=1)
        row.worker = worker
        session.add(row)
    return Stored(strategy, model, cluster, search, "job-followed")


def step(database: Database, message: str) -> None:
    """Let the followed job make progress."""
    with database.of(TENANT).write() as session:
        row = session.get_one(JobRow, ("job-followed", TENANT))
        row.message, row.revision = message, row.revision + 1


def cpu_s(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_ready(url: str) -> bool:
    """Whether the service says that it can work."""
    return httpx.get(f"{url}/readyz").status_code == 200
