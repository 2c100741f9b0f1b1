"""A service in separate processes, on a database with many strategies."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import insert, select, update

from autosbp.client import Client
from autosbp.service.db import Database
from autosbp.service.models import JobRow, StrategyRow, WorkerRow, now, table_of
from autosbp.service.services import keys
from autosbp.service.settings import Settings

TENANT = "load"
_BATCH = 5000
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class Stored:
    """Resources that the load requests.

    ``num_strategies`` strategies (ids by ``copy_id``), real ids, an already answered search, and a running job.
    """

    num_strategies: int
    model_id: str
    cluster_id: str
    search: dict[str, Any]
    job_id: str


@dataclass(frozen=True, slots=True)
class Served:
    """A started service: its URLs, an API key, its database, and its processes."""

    urls: tuple[str, ...]
    key: str
    database: Database
    pids: tuple[int, ...]


@contextmanager
def run_service(folder: Path, database_url: str | None, processes: int) -> Iterator[Served]:
    """Run one process that serves and works, as SQLite requires; or several that serve, plus a worker."""
    settings = Settings(data_dir=folder, database_url=database_url)
    database = Database(settings.url)
    database.upgrade()
    key = keys.create(database.of(TENANT), "load", ("read", "search", "calibrate", "admin")).text
    alone = processes == 1
    parts = [f"serve-{number}" for number in range(processes)] + ([] if alone else ["work"])
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in parts:
            started[name] = _start(folder, name, settings.url, works=alone or name == "work")
        urls = tuple(_ready(folder, name, process) for name, process in started.items())
        serving = [each for each in urls if each.startswith("http")]
        yield Served(tuple(serving), key, database, tuple(each.pid for each in started.values()))
    finally:
        for process in started.values():
            process.terminate()
        for process in started.values():
            process.wait(30)
        database.close()


def _start(folder: Path, name: str, url: str, *, works: bool) -> subprocess.Popen[bytes]:
    told = f"Path({str(folder / name)!r}).write_text"
    part = (
        f"serve(Settings(), on_ready={told})"
        if name.startswith("serve")
        else f"run_worker(Settings(), lambda: {told}('works'))"
    )
    program = (
        "from pathlib import Path; from autosbp.service.server import log_to_standard_error, serve\n"
        "from autosbp.service.worker_main import run_worker; from autosbp.service.settings import Settings\n"
        f"log_to_standard_error(); {part}"
    )
    variables = {
        "AUTOSBP_DATA_DIR": str(folder),
        "AUTOSBP_PORT": "0",
        "AUTOSBP_DATABASE_URL": url,
        "AUTOSBP_WORKER": str(works).lower(),
    }
    with (folder / f"{name}.log").open("w") as log:
        return subprocess.Popen([sys.executable, "-c", program], env={**os.environ, **variables}, stderr=log)


def _ready(folder: Path, name: str, process: subprocess.Popen[bytes]) -> str:
    deadline_s, told = time.monotonic() + _START_S, folder / name
    while time.monotonic() < deadline_s and process.poll() is None:
        if told.exists() and (text := told.read_text()):
            return text
        time.sleep(0.05)
    raise RuntimeError(f"the service did not start: {(folder / f'{name}.log').read_text()[-2000:]}")


def fill(service: Served, num_strategies: int) -> Stored:
    """Search one real strategy, store ``num_strategies`` copies of it under other ids, and a job that keeps running."""
    database = service.database
    with Client(service.urls[0], key=service.key) as client:
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
                "id": copy_id(number),
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
        worker = session.scalars(select(WorkerRow.id)).one()  # without a live worker, the job would be queued again
    with database.of(TENANT).write() as session:
        row = JobRow(id="job-followed", kind="search", payload={}, state="running", message="0", attempts=1)
        row.worker = worker
        session.add(row)
    if not database.is_sqlite:  # as the server's own housekeeping does after a while
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")
            connection.exec_driver_sql("CHECKPOINT")  # writes during the load should be its own
    return Stored(num_strategies, model, cluster, search, "job-followed")


def copy_id(number: int) -> str:
    """The id of a copy."""
    return f"plan-{number:016x}"


def step(database: Database, message: str) -> None:
    """Let the followed job make progress.

    A single statement, so that this process never holds a lock while it waits for a core.
    """
    jobs = table_of(JobRow)
    moved = update(jobs).where(jobs.c.id == "job-followed").values(message=message, revision=jobs.c.revision + 1)
    options = {"sqlite_begin": None} if database.is_sqlite else {"isolation_level": "AUTOCOMMIT"}
    with database.engine.execution_options(**options).connect() as connection:
        connection.execute(moved)


def cpu_s(*pids: int) -> float:
    """Total processor seconds that the processes have used so far."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK")


def are_ready(urls: Sequence[str]) -> bool:
    """Whether every process of the service reports that it is ready."""
    return all(httpx.get(f"{url}/readyz").status_code == 200 for url in urls)
