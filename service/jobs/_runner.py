"""The job runner: threads that claim rows of the table ``jobs`` and run them to their end.

Each lane has a number of threads. An idle thread claims the next job (``autosbp.service.jobs._fair_queue`` chooses it) and
finishes it before it claims another. Two more threads send this process's heartbeat and look for dead workers.

On SQLite one process works on jobs (``autosbp.service.process_lock``). On PostgreSQL any number may, next to processes that
only serve requests (``works`` is False) and use the runner to submit jobs.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import event, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from autosbp.service.database_damage import is_damage
from autosbp.service.db import Database, one_line_message
from autosbp.service.jobs import _job_rows
from autosbp.service.jobs._base import LANES, Document, Interrupted, Kinds
from autosbp.service.jobs._dead_worker_sweeper import sweep
from autosbp.service.jobs._execution import UNAVAILABLE, Executor
from autosbp.service.jobs._fair_queue import FairQueue
from autosbp.service.jobs._fault_injection import ReachPoint, make_crash_hook
from autosbp.service.jobs._job_rows import ClaimRules, QueueLimits
from autosbp.service.jobs._machine_lock import MachineLock
from autosbp.service.jobs._worker_pool import WorkerPool
from autosbp.service.jobs._worker_registry import WorkerRegistry
from autosbp.service.models import DEFAULT_EXPECTED_S, ID_DIGITS, JobRow

_log = logging.getLogger(__name__)
# polling interval: short if other processes submit; SQLite has one process, which wakes the threads itself
_LOOK_S, _LOOK_EMBEDDED_S = 0.25, 1.0
_RETRY_S = 0.5
_BEATS_PER_LEASE, _SWEEPS_PER_LEASE = 5, 5  # heartbeats and sweeps per lease
_DRAIN_S = 15.0


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """Options of the job runner.

    Args:
        limits: limits of waiting jobs.
        max_attempts: limit of attempts per job.
        cancel_grace_s: seconds that a cancelled job has to stop.
        lanes: number of concurrent jobs per lane in this process.
        fairness: shares of tenants in a lane.
        measure_alone: whether measurements exclude all other jobs.
        lease_s: seconds without a heartbeat after which a worker counts as dead.
        works: whether this process works on jobs at all.
        variables: names of additional environment variables for jobs' processes.
        crash_at: for tests, see ``autosbp.service.jobs._fault_injection``.
    """

    limits: QueueLimits
    max_attempts: int = 3
    cancel_grace_s: float = 10.0
    lanes: dict[str, int] = field(default_factory=lambda: {"plan": 1, "measure": 1})
    fairness: FairQueue = field(default_factory=FairQueue)
    measure_alone: bool = True
    lease_s: float = 20.0
    works: bool = True
    variables: tuple[str, ...] = ()
    crash_at: str | None = None


class DurableRunner:
    """Implements ``JobRunner``. It may be restarted after a stop."""

    def __init__(self, database: Database, kinds: Kinds, data_dir: Path, options: RunnerOptions) -> None:
        self._database, self._kinds, self._data_dir, self._options = database, kinds, data_dir, options
        self._reach: ReachPoint = make_crash_hook(options.crash_at)
        self._work: _RunningThreads | None = None

    def start(self) -> None:
        """Start working; on SQLite the caller must hold the data folder (``autosbp.service.process_lock``)."""
        self._data_dir.mkdir(parents=True, exist_ok=True)
        if self._options.works:
            self._work = _RunningThreads(self._database, self._kinds, self._data_dir, self._options, self._reach)
            self._work.start()

    def stop(self) -> None:
        """Interrupt running jobs and end all their processes."""
        work, self._work = self._work, None
        if work is not None:
            work.end()

    def submit(
        self,
        session: Session,
        kind: str,
        payload: Document,
        resource: str | None = None,
        job_id: str | None = None,
        expected_s: float = DEFAULT_EXPECTED_S,
    ) -> JobRow:
        """Queue a job in the caller's transaction; its commit wakes the threads."""
        row = JobRow(
            id=job_id or f"job-{secrets.token_hex(ID_DIGITS // 2)}", kind=kind, payload=payload, resource=resource
        )
        row.lane, row.expected_s = self._kinds[kind].lane if kind in self._kinds else LANES[0], expected_s
        _job_rows.add(session, row, self._options.limits)
        event.listen(session, "after_commit", lambda _session: self._wake(), once=True)
        return row

    def get(self, job_id: str) -> JobRow | None:
        """Return the job's current row, detached."""
        return self.newer(job_id, 0)

    def newer(self, job_id: str, revision: int) -> JobRow | None:
        """Return the job's row if it has changed since ``revision``."""
        with self._database.read() as session:
            return session.scalar(select(JobRow).where(JobRow.id == job_id, JobRow.revision > revision))

    def cancel(self, job_id: str, check: Callable[[JobRow], None] | None = None) -> JobRow | None:
        """Request the end of a job; its worker sees the request within a fraction of a second."""
        with self._database.write() as session:
            return _job_rows.request_cancel(session, job_id, check)

    def unhealthy_reason(self) -> str | None:
        """Why this process does not work on jobs as it should; None if it does or need not."""
        if not self._options.works:
            return None
        return "no job is running" if self._work is None else self._work.unhealthy_reason()

    @property
    def idle_pids(self) -> list[int]:
        """Pids of idle worker processes."""
        return [] if self._work is None else self._work.children.idle_pids

    def _wake(self) -> None:
        if self._work is not None:
            self._work.wake()


class _RepeatingThread:
    """A thread that repeats ``work`` every ``every_s`` seconds, or at once if it returns True.

    ``done_s`` is the time of the last success, ``error`` the exception of a failure since, ``early`` an event that ends
    the pause.
    """

    def __init__(self, name: str, work: Callable[[], bool], every_s: float) -> None:
        self._work, self._every_s, self._is_stopping = work, every_s, False
        self.done_s, self.early = time.monotonic(), threading.Event()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=f"jobs-{name}", daemon=True)

    @property
    def words(self) -> str:
        """The error's reason for people who may not see the log."""
        if isinstance(self.error, SQLAlchemyError) and is_damage(self.error):
            return one_line_message(self.error)
        return "see the log"

    def stop(self) -> None:
        """Stop repeating."""
        self._is_stopping = True
        self.early.set()

    def _run(self) -> None:
        while not self._is_stopping:
            self.early.clear()
            pause_s = self._every_s
            try:
                pause_s = 0.0 if self._work() else pause_s
                self.done_s, self.error = time.monotonic(), None
            except Interrupted as error:
                _log.info("a job was interrupted: %s", error)
                pause_s = _RETRY_S
            except UNAVAILABLE as error:
                _log.warning("the job runner is retrying: %s", error)
                pause_s = min(self._every_s, _RETRY_S)
            except Exception as error:
                _log.exception("the job runner failed; retrying")
                self.error = error
            if not self._is_stopping:
                self.early.wait(pause_s)


class _RunningThreads:
    """The threads of a started runner, and what they share."""

    def __init__(
        self, database: Database, kinds: Kinds, data_dir: Path, options: RunnerOptions, reach: ReachPoint
    ) -> None:
        self._database, self._options, self._reach = database, options, reach
        self._stopping, self._claiming = threading.Event(), threading.Lock()
        self._presence = WorkerRegistry(database, options.lease_s)
        self.children = WorkerPool(self._presence.id, options.cancel_grace_s, options.variables)
        self._turns, folder = MachineLock(options.measure_alone), data_dir.resolve() / "jobs"
        self._executor = Executor(
            *(database, kinds, folder, options.max_attempts, self._presence, self.children, reach, self._stopping)
        )
        self._rules = ClaimRules(
            *(options.fairness, options.max_attempts),
            lambda kind: kind not in kinds or kinds[kind].resumable,
            self._executor.has_outcome,
        )
        self._active, self._is_unsure = set[str](), False
        self._has_swept = False
        look_s = _LOOK_EMBEDDED_S if database.is_sqlite else _LOOK_S
        self._regular = [
            _RepeatingThread("beat", self._beat, options.lease_s / _BEATS_PER_LEASE),
            _RepeatingThread("sweep", self._sweep, options.lease_s / _SWEEPS_PER_LEASE),
        ]
        self._lanes = [
            _RepeatingThread(f"{lane}-{number}", lambda lane=lane: self._serve(lane), look_s)  # type: ignore[misc]
            for lane, count in options.lanes.items()
            for number in range(count)
        ]

    def unhealthy_reason(self) -> str | None:
        """What keeps the threads from working on jobs; None if nothing does."""
        for loop in (*self._regular, *self._lanes):
            if not loop.thread.is_alive():
                return f"thread {loop.thread.name} has died; restart the service"
            if loop.error is not None:
                return f"the job runner failed: {loop.words}"
        late_s = time.monotonic() - min(loop.done_s for loop in self._regular)
        if late_s > self._options.lease_s:
            return f"the job runner has been stalled for {late_s:.0f} s"
        return self.children.unhealthy_reason()

    def start(self) -> None:
        """Register this process as a worker and start the threads."""
        self._presence.beat()
        for loop in (*self._regular, *self._lanes):
            loop.thread.start()

    def wake(self) -> None:
        """Make the lanes look for jobs at once."""
        for loop in self._lanes:
            loop.early.set()

    def end(self) -> None:
        """Stop the threads, wait for them and their jobs, and requeue unfinished jobs for others."""
        deadline_s = time.monotonic() + _DRAIN_S
        self._stopping.set()
        loops = (*self._regular, *self._lanes)
        for loop in loops:
            loop.stop()
        for loop in loops:
            loop.thread.join(max(0.0, deadline_s - time.monotonic()))
        self.children.close()
        if stuck := [loop.thread.name for loop in loops if loop.thread.is_alive()]:
            _log.warning("%s still waiting for the database; they end with the process", " and ".join(stuck))
        try:
            with self._database.write() as session:
                self._presence.unregister(session)
                _job_rows.requeue(session, JobRow.worker == self._presence.id, "interrupted by a shutdown")
        except SQLAlchemyError as error:
            _log.warning("interrupted jobs will be requeued once this worker is declared dead: %s", error)

    def _beat(self) -> bool:
        self._presence.beat()
        return False

    def _sweep(self) -> bool:
        sweep(self._database, self._presence, "its worker died" if self._has_swept else "interrupted by a restart")
        self._has_swept = True
        return False

    def _serve(self, lane: str) -> bool:
        """Run the lane's next job, if there is one; return whether there was."""
        if not self._waits(lane):
            return False
        with self._turns.acquire(lane, lambda: self._must_stop() or not self._waits(lane)):
            lease = self._claimed(lane)
            if lease is None:
                return False
            has_ended = False
            try:
                self._executor.run(lease)
                has_ended = True
            finally:
                with self._claiming:
                    self._active.discard(lease.job_id)
                    self._is_unsure |= not has_ended
        return True

    def _waits(self, lane: str) -> bool:
        """Whether there may be something to claim."""
        waiting = select(JobRow.kind).where(JobRow.state == "queued", JobRow.lane == lane).limit(1)
        with self._database.read() as session:
            kind = session.scalar(waiting)
        if kind is not None:
            self._reach(kind, "accepted")
        return kind is not None or self._is_unsure

    def _claimed(self, lane: str) -> _job_rows.Lease | None:
        """Claim the lane's next job.

        First requeues jobs of this process that no thread works on: claims whose commit was lost, and interrupted work.
        """
        if self._must_stop():
            return None
        with self._claiming:
            was_unsure, self._is_unsure = self._is_unsure, True
            with self._database.write() as session:
                if was_unsure:
                    lost = (JobRow.worker == self._presence.id) & JobRow.id.not_in(self._active)
                    _job_rows.requeue(session, lost, "its worker failed")
                lease = _job_rows.claim(session, lane, self._presence.id, self._rules)
            self._is_unsure = False
            if lease is not None:
                self._active.add(lease.job_id)
            return lease

    def _must_stop(self) -> bool:
        return self._stopping.is_set() or not self._presence.held()
