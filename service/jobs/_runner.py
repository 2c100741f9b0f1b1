"""The job runner: rows of the table ``jobs`` become durable workflows, which threads of this process bring to their end.

The row is what the world sees and what says that a job was accepted. Nothing is queued in the transaction that adds it:
a thread looks for queued rows and queues a workflow for each, which is safe to repeat, so a crash between the two costs
nothing. The same thread is the sweeper: it takes the jobs of dead workers away from them and queues them again.

On SQLite one process works on the jobs (``service.hold``). On PostgreSQL any number may, also beside processes that only
serve requests (``works`` is False), for which this is the way to submit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import event, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service import garbage
from service.db import Database
from service.jobs import _rows
from service.jobs._base import Document, Kinds
from service.jobs._children import Children
from service.jobs._crash import Reach, crasher
from service.jobs._execution import UNAVAILABLE, Executor
from service.jobs._presence import Presence, living
from service.jobs._rows import QueueLimits
from service.jobs._sweeper import Sweeper
from service.jobs._turns import Turns
from service.models import JobRow

if TYPE_CHECKING:
    from service.jobs._dbos import Engine, Step

_log = logging.getLogger(__name__)
_LOOK_S, _LOOK_EMBEDDED_S = 0.25, 1.0  # other processes submit, or only this one, which then wakes the thread
_RETRY_S = 0.5
_BEATS, _SWEEPS = 5, 5  # in a lease
_DRAIN_S = 15.0


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """How jobs are worked on.

    Args:
        limits: how many may wait.
        lanes: how many of each lane run at once in this process.
        measure_alone: whether nothing else runs beside a measurement.
        lease_s: after which a worker that is not heard of is dead.
        works: whether this process works on jobs at all.
        crash_at: for tests, see ``service.jobs._crash``.
    """

    limits: QueueLimits
    max_attempts: int = 3
    cancel_grace_s: float = 10.0
    lanes: dict[str, int] = field(default_factory=lambda: {"plan": 1, "measure": 1})
    measure_alone: bool = True
    lease_s: float = 20.0
    works: bool = True
    crash_at: str | None = None


class DurableRunner:
    """Implements ``JobRunner``. May be started again after it was stopped."""

    def __init__(self, database: Database, kinds: Kinds, data_dir: Path, options: RunnerOptions) -> None:
        self._database, self._kinds, self._data_dir, self._options = database, kinds, data_dir, options
        self._reach: Reach = crasher(options.crash_at)
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._work: _Work | None = None

    def start(self) -> None:
        """Begin to work, on interrupted jobs too; on SQLite the caller holds the data folder (``service.hold``)."""
        self._data_dir.mkdir(parents=True, exist_ok=True)
        if not self._options.works:
            return
        self._stopping.clear()
        self._work = _Work(self._database, self._kinds, self._data_dir, self._options, self._reach, self._stopping)
        self._work.start(self._wake)

    def stop(self) -> None:
        """End running jobs as interruptions, and every process with them."""
        self._stopping.set()
        self._wake.set()
        work, self._work = self._work, None
        if work is not None:
            work.end()

    def submit(
        self, session: Session, kind: str, payload: Document, resource: str | None = None, job_id: str | None = None
    ) -> JobRow:
        """Queue a job in the caller's transaction; the runner wakes when that commits."""
        row = _rows.add(session, kind, payload, resource, job_id, self._options.limits)
        event.listen(session, "after_commit", lambda _session: self._wake.set(), once=True)
        return row

    def get(self, job_id: str) -> JobRow | None:
        """The job's present row, detached."""
        return self.newer(job_id, 0)

    def newer(self, job_id: str, revision: int) -> JobRow | None:
        """The job's row if it has changed since ``revision``."""
        with self._database.read() as session:
            return session.scalar(select(JobRow).where(JobRow.id == job_id, JobRow.revision > revision))

    def cancel(self, job_id: str, check: Callable[[JobRow], None] | None = None) -> JobRow | None:
        """Request the end of a job; whoever runs it sees the request within a fraction of a second."""
        with self._database.write() as session:
            return _rows.request_cancel(session, job_id, check)

    def alive(self) -> bool:
        """Whether this process does its part: works on jobs, if it should."""
        return not self._options.works or (self._work is not None and self._work.is_alive)

    def is_well(self) -> bool:
        """Whether this process works on jobs and has lately done all that this takes, in the database too."""
        return self._work is not None and self._work.is_well

    @property
    def idle_pids(self) -> list[int]:
        """Of worker processes that wait for a job."""
        return [] if self._work is None else self._work.children.idle_pids


class _Work:
    """The threads of a started runner, and what they share."""

    def __init__(
        self,
        database: Database,
        kinds: Kinds,
        data_dir: Path,
        options: RunnerOptions,
        reach: Reach,
        stopping: threading.Event,
    ) -> None:
        self._database, self._data_dir, self._options, self._stopping = database, data_dir, options, stopping
        self._running, self._changed = Counter[str](), threading.Condition()
        self._presence = Presence(database, options.lease_s)
        self.children = Children(self._presence.id, options.cancel_grace_s)
        turns, folder = Turns(options.measure_alone), data_dir.resolve() / "jobs"
        self._executor = Executor(
            *(database, kinds, folder, options.max_attempts, self._presence, self.children, turns, reach, stopping)
        )
        self._engine: Engine | None = None
        self._sweeper = Sweeper(
            *(database, kinds, self._presence, self._opened, lambda: set(self._running), reach),
            every_s=options.lease_s / _SWEEPS,
        )
        self._threads: list[threading.Thread] = []
        self._done_s: dict[str, float] = {}

    @property
    def is_alive(self) -> bool:
        """Whether all threads are."""
        return bool(self._threads) and all(each.is_alive() for each in self._threads)

    @property
    def is_well(self) -> bool:
        """Whether they are, and have done their work within a lease."""
        last_s = time.monotonic() - self._options.lease_s
        return self.is_alive and all(done_s > last_s for done_s in self._done_s.values())

    def start(self, wake: threading.Event) -> None:
        """Enter this process among the workers and start the threads."""
        self._presence.beat()
        look_s = _LOOK_EMBEDDED_S if self._database.is_embedded else _LOOK_S
        loops = (
            ("beat", self._presence.beat, threading.Event(), self._options.lease_s / _BEATS),
            ("look", self._sweeper.look, wake, look_s),
        )
        for name, work, early, every_s in loops:
            self._done_s[name] = time.monotonic()
            thread = threading.Thread(
                target=self._repeat, args=(name, work, early, every_s), name=f"jobs-{name}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def end(self) -> None:
        """Wait for the threads and the jobs, which have been told, and leave the rest to others."""
        deadline_s = time.monotonic() + _DRAIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        with self._changed:
            self._changed.wait_for(lambda: not self._running, max(0.0, deadline_s - time.monotonic()))
        self.children.close()
        if stuck := [each.name for each in self._threads if each.is_alive()]:
            _log.warning("%s wait for the database, and end with the process", " and ".join(stuck))
        elif self._engine is not None:
            self._engine.close()
        try:
            with self._database.write() as session:
                self._presence.leave(session)
                session.flush()
                _rows.release(session, living(session), "interrupted by a shutdown")
        except SQLAlchemyError as error:
            _log.warning("interrupted jobs are queued again when others find this worker dead: %s", error)

    def _repeat(self, name: str, work: Callable[[], None], early: threading.Event, every_s: float) -> None:
        while not self._stopping.is_set():
            early.clear()
            pause_s = every_s
            try:
                work()
                self._done_s[name] = time.monotonic()
            except UNAVAILABLE as error:
                _log.warning("the job runner tries again: %s", error)
                pause_s = min(every_s, _RETRY_S)
            except Exception:
                _log.exception("the job runner could not go on; it tries again")
            deadline_s = time.monotonic() + pause_s
            while not (self._stopping.is_set() or early.is_set()) and (left_s := deadline_s - time.monotonic()) > 0:
                early.wait(min(left_s, _LOOK_S))

    def _opened(self) -> Engine:
        if self._engine is None:
            from service.jobs._dbos import Engine  # takes a second to import, and waits until there is a job

            engine = Engine(self._database.url, self._data_dir, self._presence.id, self._options.lanes)
            engine.open(self._run)
            self._engine = engine
            garbage.keep_all()
        return self._engine

    def _run(self, job_id: str, step: Step) -> None:
        with self._changed:
            self._running[job_id] += 1
        try:
            self._executor.run(job_id, step)
        finally:
            with self._changed:
                self._running[job_id] -= 1
                self._running += Counter()  # drops what is zero
                self._changed.notify_all()
