"""Execution of one job, from its claim to its end: run it in a worker process and store its result.

It may be interrupted anywhere and claimed again, here or elsewhere. An outcome is written to a file before anything
else, and the file stays until the outcome is stored.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from autosbp.service import tracing
from autosbp.service.db import Database
from autosbp.service.jobs import _job_rows
from autosbp.service.jobs._base import FINAL_STATES, Document, Interrupted, JobKind, Kinds
from autosbp.service.jobs._fault_injection import ReachPoint
from autosbp.service.jobs._job_rows import Lease
from autosbp.service.jobs._worker_pool import TaskCallbacks, WorkerDied, WorkerNotStarted, WorkerPool
from autosbp.service.jobs._worker_registry import WorkerRegistry
from autosbp.service.models import ArtifactRow, JobRow
from autosbp.service.problem_details import problem, problem_of

_log = logging.getLogger(__name__)
_PAUSE_S = 0.5
_MAX_DEATHS = 2
_ENDS = {"done": "succeeded", "failed": "failed", "cancelled": "cancelled"}
UNAVAILABLE = (OperationalError, InterfaceError, PoolTimeoutError)
"""Exceptions raised while the database is unreachable, full or locked."""
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Executor:
    """Works on claimed jobs in the threads that call ``run``.

    Args:
        folder: where outcomes are kept until they are stored.
        max_attempts: limit of attempts per job.
        presence: this worker's registration.
        children: pool of worker processes.
        reach: called at each named point (``autosbp.service.jobs._fault_injection``).
        stopping: set when the work must end.
    """

    database: Database
    kinds: Kinds
    folder: Path
    max_attempts: int
    registry: WorkerRegistry
    worker_pool: WorkerPool
    reach_point: ReachPoint
    stopping: threading.Event

    def run(self, lease: Lease) -> None:
        """Run a job to its end; raise ``Interrupted`` if it must continue later or elsewhere."""
        self.reach_point(lease.kind, "taken")
        with tracing.job_span(f"job {lease.kind}", lease.trace, job=lease.job_id, kind=lease.kind, fence=lease.fence):
            outcome = self._outcome(lease)
            self._store(lease, outcome)
            self.reach_point(lease.kind, "stored")
        shutil.rmtree(self.folder / lease.job_id, ignore_errors=True)

    def has_outcome(self, job_id: str) -> bool:
        """Whether an attempt at the job has finished but its outcome is not stored yet."""
        return self._path(job_id).exists()

    def _path(self, job_id: str) -> Path:
        return self.folder / job_id / "outcome.json"

    def _outcome(self, lease: Lease) -> Document:
        """Return the outcome of an earlier finished attempt, or run an attempt."""
        kind = self.kinds.get(lease.kind)
        if kind is None:
            return {"op": "failed", "problem": problem(500, f"unknown job kind {lease.kind!r}")}
        if (kept := _read(self._path(lease.job_id))) is not None:
            return kept
        with tracing.span("run"):
            if tracing.is_on():
                self._retry_while_unavailable(
                    lambda: self._in_write_session(lambda session: _job_rows.store_trace(session, lease))
                )
            outcome = self._run_with_restart(lease, kind)
        self.reach_point(lease.kind, "ended")
        self._retry_while_unavailable(lambda: self._check_ownership(lease))
        return outcome

    def _run_with_restart(self, lease: Lease, kind: JobKind) -> Document:
        """Run an attempt, and another one if its worker process died."""
        deaths = 0
        while True:
            try:
                return self._attempt(lease, kind)
            except WorkerDied as error:
                death, deaths = error, deaths + 1
            # raises if the process was killed because another worker took the job
            self._retry_while_unavailable(lambda: self._check_ownership(lease))
            if (kept := _read(self._path(lease.job_id))) is not None:
                return kept
            if deaths == _MAX_DEATHS or not kind.resumable or not self._count_restart(lease, str(death)):
                return _worker_died_outcome(str(death), deaths)

    def _attempt(self, lease: Lease, kind: JobKind) -> Document:
        inputs = self._retry_while_unavailable(lambda: self._inputs(lease, kind))
        self.reach_point(lease.kind, "prepared")
        if "op" in inputs:
            return inputs
        watch = TaskCallbacks(
            lambda: self._check(lease),
            lambda message: self._report(lease, message),
            lambda: self.reach_point(lease.kind, "started"),
        )
        try:
            return self.worker_pool.run(kind, inputs["inputs"], self._path(lease.job_id), watch)
        except WorkerNotStarted as error:
            mine = (JobRow.id == lease.job_id) & (JobRow.fence == lease.fence)
            words = str(error)
            self._retry_while_unavailable(
                lambda: self._in_write_session(lambda session: _job_rows.requeue(session, mine, words, begun=False))
            )
            raise

    def _count_restart(self, lease: Lease, death: str) -> bool:
        reason = f"the worker process died: {death}"
        return self._retry_while_unavailable(
            lambda: self._in_write_session(
                lambda session: _job_rows.count_restart(session, lease, reason, self.max_attempts)
            )
        )

    def _inputs(self, lease: Lease, kind: JobKind) -> Document:
        """Prepare the task's inputs, or return a failed outcome if that is impossible."""
        try:
            with tracing.span("prepare"), self.database.of(lease.tenant).read() as session:
                return {"inputs": kind.prepare(session, _job_rows.require_job(session, lease))}
        except UNAVAILABLE:
            raise
        except Exception as error:
            _log.exception("could not prepare job %s", lease.job_id)
            return {"op": "failed", "problem": problem_of(error)}

    def _in_write_session(self, work: Callable[[Session], Found]) -> Found:
        with self.database.write() as session:
            return work(session)

    def _check(self, lease: Lease) -> bool:
        if self._must_stop():
            raise Interrupted("the service is stopping, or lost its heartbeat")
        try:
            return self._check_ownership(lease)
        except SQLAlchemyError as error:
            _log.warning("cannot check whether job %s was cancelled: %s", lease.job_id, error)
            return False

    def _check_ownership(self, lease: Lease) -> bool:
        """Return whether cancellation was requested; raise ``Interrupted`` if another worker has the job."""
        with self.database.read() as session:
            query = select(JobRow.fence, JobRow.cancel_requested).where(JobRow.id == lease.job_id)
            found = session.execute(query).one_or_none()
        if found is None or found.fence != lease.fence:
            raise Interrupted(f"job {lease.job_id} was taken over by another worker")
        return bool(found.cancel_requested)

    def _report(self, lease: Lease, message: Document) -> None:
        try:
            with self.database.write() as session:
                _job_rows.report(session, lease, message["progress"], message["message"], message["figures"])
        except SQLAlchemyError as error:
            _log.warning("could not record the progress of job %s: %s", lease.job_id, error)

    def _store(self, lease: Lease, outcome: Document) -> None:
        """Store the outcome and set the job's final state."""
        state, failure = _ENDS[outcome["op"]], outcome.get("problem")
        with tracing.span("store", outcome=outcome["op"]):
            try:
                self._retry_while_unavailable(
                    lambda: self._finish(lease, state, found=outcome.get("result"), failure=failure)
                )
            except Exception as error:
                _log.exception("could not store the result of job %s", lease.job_id)
                reason = problem_of(error)
                self._retry_while_unavailable(lambda: self._finish(lease, "failed", failure=reason))

    def _finish(
        self, lease: Lease, state: str, *, found: Document | None = None, failure: Document | None = None
    ) -> None:
        left = self._saved_artifacts(lease)
        with self.database.of(lease.tenant).write() as session:
            row = _job_rows.lock_held_job(session, lease)
            if row.state in FINAL_STATES:  # already stored by a commit whose answer was lost
                return
            for artifact in left:
                session.merge(artifact)
            if row.cancel_requested:
                state, found, failure = "cancelled", None, None
            result = self.kinds[row.kind].store(session, row, found) if found is not None else None
            _job_rows.finish(session, row, state, result=result, failure=failure)

    def _saved_artifacts(self, lease: Lease) -> Sequence[ArtifactRow]:
        """Save the files that the work left and return their rows; errors here do not fail the job."""
        kind = self.kinds.get(lease.kind)
        if kind is None or kind.keep is None:
            return ()
        with self.database.read() as session:
            row = _job_rows.require_job(session, lease)
            try:
                return kind.keep(session, row)
            except Exception:
                _log.exception("could not keep the files of job %s", lease.job_id)
                return ()

    def _retry_while_unavailable(self, work: Callable[[], Found]) -> Found:
        """Run ``work``, retrying while the database is unavailable."""
        while True:
            try:
                return work()
            except UNAVAILABLE as error:
                _log.warning("the database does not respond; retrying: %s", error)
            self._pause()

    def _pause(self) -> None:
        if self.stopping.wait(_PAUSE_S):
            raise Interrupted("the service is stopping")

    def _must_stop(self) -> bool:
        return self.stopping.is_set() or not self.registry.held()


def _worker_died_outcome(death: str, deaths: int) -> Document:
    often = "" if deaths == 1 else " twice"
    detail = f"the worker process died{often} while it ran this job: {death}"
    return {"op": "failed", "problem": problem(500, detail, name="worker-died", title="The worker process died")}


def _read(path: Path) -> Document | None:
    try:
        document: Document = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        _log.warning("cannot read a stored outcome; running the job again: %s", error)
        return None
    return document
