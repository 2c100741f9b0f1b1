"""Job workers: the job runner that settings describe, and a process that only works on jobs (``autosbp work``)."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType

from sqlalchemy.exc import SQLAlchemyError

from autosbp.errors import InputError, ServiceError
from autosbp.service import database_damage, tracing
from autosbp.service.db import Database, one_line_message
from autosbp.service.file_permissions import restrict_permissions
from autosbp.service.jobs._base import Kinds
from autosbp.service.jobs._fair_queue import FairQueue
from autosbp.service.jobs._runner import DurableRunner, RunnerOptions
from autosbp.service.jobs.heartbeat import Heartbeat
from autosbp.service.maintenance import Maintenance, maintenance_tasks
from autosbp.service.process_lock import ProcessLock
from autosbp.service.services.job_kinds import kinds as all_kinds
from autosbp.service.services.jobs import queue_limits
from autosbp.service.settings import Settings

_log = logging.getLogger("autosbp.service")
_BEATS_PER_LEASE = 5  # heartbeats per lease


def make_runner(settings: Settings, database: Database, kinds: Kinds | None = None) -> DurableRunner:
    """Build the job runner of a database.

    Args:
        settings: limits, queues and fairness.
        database: the database with the job queue.
        kinds: job kinds to use in place of the service's own.

    Raises:
        InputError: working on jobs is switched off with SQLite, which no other process may use.
    """
    if not settings.worker and database.is_sqlite:
        raise InputError("worker", False, "SQLite supports only one process; separate workers require PostgreSQL")
    if settings.worker and settings.measures_here and (weakness := settings.confinement.weakness):
        _log.warning("%s", weakness)
    options = RunnerOptions(
        limits=queue_limits(settings),
        max_attempts=settings.max_attempts,
        cancel_grace_s=settings.cancel_grace_s,
        lanes={"plan": settings.plan_jobs, "measure": settings.measure_jobs},
        fairness=FairQueue(settings.tenant_weights, settings.max_running_jobs_of_tenant),
        measure_alone=settings.measures_here and settings.measure_alone,
        lease_s=settings.worker_lease_s,
        works=settings.worker,
        variables=tuple(settings.rank_variables),
        crash_at=settings.crash_at if settings.testing else None,
    )
    return DurableRunner(database, kinds if kinds is not None else all_kinds(settings), settings.data_dir, options)


def run_worker(settings: Settings, on_ready: Callable[[], None] | None = None, kinds: Kinds | None = None) -> None:
    """Work on jobs until SIGINT or SIGTERM.

    ``autosbp.service.jobs.heartbeat`` reports whether the worker is healthy.

    Args:
        settings: the service's settings.
        on_ready: called when the work has begun.
        kinds: job kinds to use in place of the service's own.

    Raises:
        ServiceError: startup failed.
    """
    restrict_permissions(settings)
    if settings.otel:
        tracing.start_tracing()
    ended, earlier = threading.Event(), {}

    def end(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    database = Database(settings.url, settings.lock_timeout_s)
    runner, chores = (
        make_runner(settings, database, kinds),
        Maintenance(database, maintenance_tasks(settings, database)),
    )
    hold, heartbeat = ProcessLock(database, settings.data_dir), Heartbeat(settings.data_dir, settings.worker_lease_s)
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            earlier[number] = signal.signal(number, end)
        hold.take()
        database_damage.upgrade(database)
        runner.start()
        chores.start()
        heartbeat.begin()
        _beat(heartbeat, runner)
        _log.info("autosbp worker is ready")
        if on_ready is not None:
            on_ready()
        while not ended.wait(settings.worker_lease_s / _BEATS_PER_LEASE):
            _beat(heartbeat, runner)
    except SQLAlchemyError as error:
        raise ServiceError(f"cannot start the worker: {one_line_message(error)}") from None
    finally:
        heartbeat.end()
        chores.stop()
        runner.stop()
        database.close()
        hold.release()
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _beat(heartbeat: Heartbeat, runner: DurableRunner) -> None:
    try:
        if runner.unhealthy_reason() is None:
            heartbeat.beat()
    except OSError as error:
        _log.warning("cannot write the worker's heartbeat: %s", error)
