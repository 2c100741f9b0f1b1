"""Working on jobs: the runner that settings describe, and a process that does nothing else (``autosbp work``)."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType

from sqlalchemy.exc import SQLAlchemyError

from autosbp.errors import InputError, ServiceError
from service import tracing
from service.chores import Chores, chores_of
from service.db import Database, plainly
from service.hold import Hold
from service.jobs._base import Kinds
from service.jobs._rows import QueueLimits
from service.jobs._runner import DurableRunner, RunnerOptions
from service.jobs.heartbeat import Heartbeat
from service.privacy import keep_private
from service.services.kinds import kinds as all_kinds
from service.settings import Settings

_log = logging.getLogger("service")
_BEATS = 5  # in a lease


def runner_of(settings: Settings, database: Database, kinds: Kinds | None = None) -> DurableRunner:
    """The runner of a database's jobs; ``kinds`` is another table than the service's own."""
    if not settings.worker and database.is_embedded:
        raise InputError("worker", False, "SQLite is for one process, which works on jobs; others need PostgreSQL")
    options = RunnerOptions(
        limits=QueueLimits(settings.max_queued_jobs, settings.max_queued_jobs_of_tenant),
        max_attempts=settings.max_attempts,
        cancel_grace_s=settings.cancel_grace_s,
        lanes={"plan": settings.plan_jobs, "measure": settings.measure_jobs},
        measure_alone=settings.measures_here and settings.measure_alone,
        lease_s=settings.worker_lease_s,
        works=settings.worker,
        crash_at=settings.crash_at if settings.testing else None,
    )
    return DurableRunner(database, kinds if kinds is not None else all_kinds(settings), settings.data_dir, options)


def work(settings: Settings, on_ready: Callable[[], None] | None = None, kinds: Kinds | None = None) -> None:
    """Work on jobs until SIGINT or SIGTERM; ``on_ready`` is called when that has begun. Whether it goes well is told by
    ``service.jobs.heartbeat``."""
    keep_private(settings)
    if settings.otel:
        tracing.begin()
    ended, earlier = threading.Event(), {}

    def end(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    database = Database(settings.url, settings.lock_timeout_s)
    runner, chores = runner_of(settings, database, kinds), Chores(database, chores_of(settings, database))
    hold, heartbeat = Hold(database, settings.data_dir), Heartbeat(settings.data_dir, settings.worker_lease_s)
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            earlier[number] = signal.signal(number, end)
        hold.take()
        database.upgrade()
        runner.start()
        chores.start()
        heartbeat.begin()
        _beat(heartbeat, runner)
        _log.info("autosbp works on jobs")
        if on_ready is not None:
            on_ready()
        while not ended.wait(settings.worker_lease_s / _BEATS):
            _beat(heartbeat, runner)
    except SQLAlchemyError as error:
        raise ServiceError(f"the worker could not start: {plainly(error)}") from None
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
        if runner.is_well():
            heartbeat.beat()
    except OSError as error:
        _log.warning("that this worker works cannot be written down: %s", error)
