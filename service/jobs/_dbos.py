"""All that the service knows of DBOS (3.4): a queue for each lane, one workflow for each job, and their recovery.

A workflow's id is its job's id, so that a job is queued once however often it is handed over. Its body may run more than
once, one after the other: after the death of the process it is resumed, and a step whose result was recorded is not done
again. What DBOS leaves to its user is done here:

- Values are strict JSON; the default would be pickles.
- ``application_version`` is a constant: with another one, workflows of an earlier release would never go on.
- ``executor_id`` is this process' alone. DBOS recovers only what has the same id at launch, so workflows of processes
  that died are found by ``pending`` and ``resume``; who is dead is for the caller to know.
- A body that raises ``Interrupted``, which is no ``Exception``, leaves its workflow as if the process had died there.
- DBOS is one instance for each process. A second engine in the same process cannot open while the first one is open.

SQLite has a file of its own in the data folder, for one process; PostgreSQL has a schema of its own.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dbos import DBOS, DBOSClient, DBOSConfig, EnqueueOptions, Serializer
from sqlalchemy.engine import make_url

from autosbp.errors import ServiceError
from service.jobs._base import Document, Interrupted

_log = logging.getLogger(__name__)
_APPLICATION = "autosbp"
_VERSION = "1"  # grows when the workflow's steps change, and then earlier workflows must be brought over
_SCHEMA = "autosbp_jobs"
_WORKFLOW = "job"
_POLL_S = 0.2
_FINISHED = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]
_POOL_SIZE = 10

Step = Callable[[str, Callable[[], Document]], Document]
"""Does a named piece of work once: its result is recorded, and a repeated workflow is given what was recorded."""
Body = Callable[[str, Step], None]

_open = threading.Lock()


@dataclass(frozen=True, slots=True)
class Pending:
    """A workflow that some process has taken and not finished."""

    job_id: str
    executor_id: str


class Json(Serializer):
    """Strict JSON for what DBOS stores. An exception keeps its words alone."""

    def serialize(self, data: Any) -> str:
        """Write a value; ``TypeError`` or ``ValueError`` for what is not JSON."""
        if isinstance(data, BaseException):
            data = {"error": f"{type(data).__name__}: {data}"}
        return json.dumps(data, allow_nan=False)

    def deserialize(self, serialized_data: str) -> Any:
        """Read a value."""
        return json.loads(serialized_data)

    def name(self) -> str:
        """What rows are marked with."""
        return "autosbp_json"


class Engine:
    """Runs ``body`` in a thread for each queued job, at most ``lanes[lane]`` of a lane at once. Thread-safe when open."""

    def __init__(self, database_url: str, data_dir: Path, executor_id: str, lanes: Mapping[str, int]) -> None:
        self._url = _url_of(database_url, data_dir)
        self._executor_id, self._lanes = executor_id, lanes
        self._client: DBOSClient | None = None

    def open(self, body: Body) -> None:
        """Create or upgrade the tables and begin to run what is queued; ``ServiceError`` while this process has another
        one open."""
        if not _open.acquire(blocking=False):
            raise ServiceError("another job runner is open in this process")
        try:
            self._launch(body)
        except BaseException:
            self.close()
            raise

    def _launch(self, body: Body) -> None:
        logger = logging.getLogger("dbos")
        if not logger.handlers:  # or it would write to the console by itself
            logger.addHandler(logging.NullHandler())
        logger.setLevel(logging.WARNING)
        if (url := make_url(self._url)).get_backend_name() == "sqlite":
            _write_ahead(str(url.database))
        config: DBOSConfig = {
            "name": _APPLICATION,
            "application_version": _VERSION,
            "executor_id": self._executor_id,
            "system_database_url": self._url,
            "dbos_system_schema": _SCHEMA,
            "sys_db_pool_size": _POOL_SIZE,
            "serializer": Json(),
            "log_level": "WARNING",
            "run_migrations": True,
            "notification_listener_polling_interval_sec": 0.5,
        }
        DBOS.migrate(self._url, schema=_SCHEMA)
        self._client = DBOSClient(
            system_database_url=self._url,
            dbos_system_schema=_SCHEMA,
            serializer=Json(),
            application_name=_APPLICATION,
            retry_connection_errors=False,
        )
        for lane, concurrency in self._lanes.items():  # before the launch, whose queue threads see them at once
            self._client.register_queue(lane, worker_concurrency=concurrency, polling_interval_sec=_POLL_S)
        DBOS(config=config)
        DBOS.workflow(name=_WORKFLOW)(_workflow(body))
        DBOS.launch()

    def close(self) -> None:
        """Take no more from the queues. Bodies that still run must be told to end by the caller, before."""
        try:
            if self._client is not None:
                self._client.destroy()
                self._client = None
            DBOS.destroy(destroy_registry=True)
        finally:
            _open.release()

    def enqueue(self, job_id: str, lane: str) -> None:
        """Queue a job; nothing happens if that was done before."""
        options: EnqueueOptions = {
            "queue_name": lane,
            "workflow_name": _WORKFLOW,
            "workflow_id": job_id,
            "app_version": _VERSION,
        }
        self._connected.enqueue(options, job_id)

    def pending(self) -> list[Pending]:
        """Workflows that a process has taken and not finished, of every process, dead ones too."""
        found = self._connected.list_workflows(status="PENDING", load_input=False, load_output=False)
        return [Pending(each.workflow_id, each.executor_id or "") for each in found]

    def resume(self, job_ids: Iterable[str], lane: str) -> None:
        """Queue taken workflows again. Only the caller knows that nobody works on them."""
        self._connected.resume_workflows(list(job_ids), queue_name=lane)

    def ended(self, job_ids: list[str]) -> list[str]:
        """Those of some jobs whose workflow has ended."""
        found = self._connected.list_workflows(
            workflow_ids=job_ids, status=_FINISHED, load_input=False, load_output=False
        )
        return [each.workflow_id for each in found]

    def forget(self, job_ids: list[str] | None = None) -> None:
        """Delete what is stored of some jobs' workflows, or of some that have ended."""
        if job_ids is None:
            found = self._connected.list_workflows(status=_FINISHED, limit=200, load_input=False, load_output=False)
            job_ids = [each.workflow_id for each in found]
        if job_ids:
            self._connected.delete_workflows(job_ids)

    @property
    def _connected(self) -> DBOSClient:
        if self._client is None:
            raise ServiceError("the job runner is not open")
        return self._client


def _workflow(body: Body) -> Callable[[str], None]:
    def step(name: str, work: Callable[[], Document]) -> Document:
        found: Document = DBOS.run_step({"name": name}, work)
        return found

    def workflow(job_id: str) -> None:
        try:
            body(job_id, step)
        except Interrupted as error:
            _log.info("job %s is interrupted: %s", job_id, error)
            raise
        except BaseException as error:  # it would end the workflow, or have DBOS wait in this thread for another's end
            _log.warning("job %s is interrupted", job_id, exc_info=error)
            raise Interrupted(str(error)) from error

    return workflow


def _url_of(database_url: str, data_dir: Path) -> str:
    if make_url(database_url).get_backend_name() == "sqlite":
        return f"sqlite:///{data_dir.resolve() / 'jobs.db'}"
    return database_url


def _write_ahead(path: str) -> None:
    """Readers do not wait for writers; the file remembers it."""
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
    finally:
        connection.close()
