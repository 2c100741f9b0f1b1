"""The local runner: one thread of the service and one worker process, jobs in the order in which they came.

One job runs at a time, so that a search never disturbs a measurement on the same machine. The worker process is started
at the first job and kept, so that later jobs find their imports done. One runner at a time owns a data folder.
"""

from __future__ import annotations

import fcntl
import logging
import threading
import time
from pathlib import Path
from typing import IO

from sqlalchemy import event, select
from sqlalchemy.orm import Session

from autosbp.errors import ServiceError
from service.db import Database
from service.jobs import _rows
from service.jobs._base import Document, Kinds
from service.jobs._handle import Worker
from service.models import JobRow
from service.problems import problem, problem_of

_log = logging.getLogger(__name__)
_IDLE_POLL_S = 1.0
_MESSAGE_POLL_S = 0.1


class LocalRunner:
    """Implements ``JobRunner`` in this process."""

    def __init__(
        self,
        database: Database,
        kinds: Kinds,
        data_dir: Path,
        max_queued: int,
        max_attempts: int,
        cancel_grace_s: float,
    ) -> None:
        self._database, self._kinds = database, kinds
        self._max_queued, self._max_attempts, self._grace_s = max_queued, max_attempts, cancel_grace_s
        self._lock_path = data_dir / "runner.lock"
        self._lock_file: IO[str] | None = None
        self._thread = threading.Thread(target=self._loop, name="jobs", daemon=True)
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._worker: Worker | None = None

    def start(self) -> None:
        """Recover interrupted jobs and begin to work; ``ServiceError`` if another service owns the data folder."""
        self._lock_path.parent.mkdir(parents=True, exist_ok=True)
        self._lock_file = self._lock_path.open("a")
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock_file.close()
            raise ServiceError(f"another service is using {self._lock_path.parent}; set AUTOSBP_DATA_DIR") from None
        self._interrupt_running("interrupted by a restart")
        self._thread.start()

    def stop(self) -> None:
        """End the running job as an interruption, and the worker with it."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._lock_file is not None:
            self._lock_file.close()

    def submit(self, session: Session, kind: str, payload: Document, resource: str | None = None) -> JobRow:
        """Queue a job in the caller's transaction; the runner wakes when that commits."""
        row = _rows.add(session, kind, payload, resource, self._max_queued)
        event.listen(session, "after_commit", lambda _session: self._wake.set(), once=True)
        return row

    def get(self, job_id: str) -> JobRow | None:
        """The job's present row, detached."""
        return self.newer(job_id, 0)

    def newer(self, job_id: str, revision: int) -> JobRow | None:
        """The job's row if it has changed since ``revision``."""
        with self._database.read() as session:
            return session.scalar(select(JobRow).where(JobRow.id == job_id, JobRow.revision > revision))

    def cancel(self, job_id: str) -> JobRow | None:
        """Request the end of a job; the runner sees a running one's request within a fraction of a second."""
        with self._database.write() as session:
            return _rows.request_cancel(session, job_id)

    def alive(self) -> bool:
        """Whether the runner's thread is working."""
        return self._thread.is_alive()

    def _loop(self) -> None:
        failed = False
        try:
            while not self._stopping.is_set():
                self._wake.clear()
                try:
                    if failed:
                        self._interrupt_running("interrupted by a failure of the job runner")
                    failed, idle = False, not self._run_next()
                except Exception:
                    _log.exception("the job runner could not go on; it tries again")
                    failed = idle = True
                if idle:
                    self._wake.wait(_IDLE_POLL_S)
        finally:
            self._discard_worker()
            self._interrupt_running("interrupted by a shutdown")

    def _run_next(self) -> bool:
        with self._database.write() as session:
            row = _rows.claim(session)
        if row is not None:
            self._run(row)
        return row is not None

    def _run(self, row: JobRow) -> None:
        kind = self._kinds.get(row.kind)
        if kind is None:
            self._finish(row.id, "failed", failure=problem(500, f"this service has no job kind {row.kind!r}"))
            return
        try:
            with self._database.read() as session:
                inputs = kind.prepare(session, row)
            outcome = self._work(row.id, kind.target, inputs)
        except Exception as error:
            _log.exception("job %s could not be run", row.id)
            self._discard_worker()
            self._finish(row.id, "failed", failure=problem_of(error))
            return
        if outcome is not None:
            self._conclude(row.id, outcome)

    def _work(self, job_id: str, target: str, inputs: Document) -> Document | None:
        """Have the worker run one task; its last message, or None if the service is stopping."""
        if self._worker is None:
            self._worker = Worker()
        cancel_deadline_s: float | None = None
        try:
            self._worker.send("run", target=target, inputs=inputs)
            while not self._stopping.is_set():
                message = self._worker.receive(_MESSAGE_POLL_S)
                if message is None:
                    pass
                elif message["op"] == "progress":
                    with self._database.write() as session:
                        _rows.report(session, job_id, message["progress"], message["message"], message["figures"])
                else:
                    return message
                if cancel_deadline_s is None:
                    if self._cancel_requested(job_id):
                        self._worker.send("cancel")
                        cancel_deadline_s = time.monotonic() + self._grace_s
                elif time.monotonic() > cancel_deadline_s:
                    self._discard_worker()
                    return {"op": "cancelled"}
        except (EOFError, OSError):
            return {"op": "died", "status": self._discard_worker()}
        return None

    def _conclude(self, job_id: str, outcome: Document) -> None:
        op = outcome["op"]
        if op == "done":
            try:
                self._finish(job_id, "succeeded", found=outcome["result"])
            except Exception as error:
                _log.exception("the result of job %s could not be stored", job_id)
                self._finish(job_id, "failed", failure=problem_of(error))
        elif op == "cancelled":
            self._finish(job_id, "cancelled")
        elif op == "failed":
            self._finish(job_id, "failed", failure=outcome["problem"])
        else:
            status = outcome["status"]
            detail = f"the worker process ended with status {status}" + (" (out of memory?)" if status == -9 else "")
            failure = problem(500, detail, name="worker-died", title="The worker process died")
            self._finish(job_id, "failed", failure=failure)

    def _finish(
        self, job_id: str, state: str, *, found: Document | None = None, failure: Document | None = None
    ) -> None:
        with self._database.write() as session:
            row = session.get_one(JobRow, job_id, with_for_update=True)
            if row.cancel_requested:
                _rows.finish(row, "cancelled")
                return
            result = self._kinds[row.kind].store(session, row, found) if found is not None else None
            _rows.finish(row, state, result=result, failure=failure)

    def _cancel_requested(self, job_id: str) -> bool:
        with self._database.read() as session:
            return bool(session.scalar(select(JobRow.cancel_requested).where(JobRow.id == job_id)))

    def _discard_worker(self) -> int | None:
        worker, self._worker = self._worker, None
        return worker.kill() if worker is not None else None

    def _interrupt_running(self, reason: str) -> None:
        with self._database.write() as session:
            for row in session.scalars(select(JobRow).where(JobRow.state == "running")):
                kind = self._kinds.get(row.kind)
                _rows.interrupt(row, kind is not None and kind.resumable, self._max_attempts, reason)
