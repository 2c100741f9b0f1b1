"""One job from its queue to its end: take it, run it in a process, store what it found.

``run`` is the body of a durable workflow (``service.jobs._dbos``): it may be cut off anywhere and begun again, here or in
another process. Its steps are ``run``, whose result is the outcome of an attempt, and ``store``.
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

from service import tracing
from service.db import Database
from service.jobs import _rows
from service.jobs._base import Document, Interrupted, JobKind, Kinds
from service.jobs._children import Children, Watch
from service.jobs._crash import Reach
from service.jobs._presence import Presence
from service.jobs._rows import Lease
from service.jobs._turns import Turns
from service.models import ArtifactRow, JobRow
from service.problems import problem, problem_of

_log = logging.getLogger(__name__)
_PAUSE_S = 0.5
_ENDED: Document = {"op": "ended"}
UNAVAILABLE = (OperationalError, InterfaceError, PoolTimeoutError)
"""What the database raises while it is away, full or locked."""
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Executor:
    """Works on jobs in the threads that call ``run``.

    Args:
        folder: where outcomes are kept until they are stored.
        reach: is called at each of the named moments (``service.jobs._crash``).
        stopping: is set when the work must end.
    """

    database: Database
    kinds: Kinds
    folder: Path
    max_attempts: int
    presence: Presence
    children: Children
    turns: Turns
    reach: Reach
    stopping: threading.Event

    def run(self, job_id: str, step: Callable[[str, Callable[[], Document]], Document]) -> None:
        """Bring a job to its end; ``Interrupted`` when it must go on later or elsewhere."""
        lease = self._patiently(lambda: self._take(job_id))
        if lease is not None:
            self.reach(lease.kind, "taken")
            with tracing.job(f"job {lease.kind}", lease.trace, job=job_id, kind=lease.kind, fence=lease.fence):
                outcome = step("run", lambda: self._attempt(lease))
                self.reach(lease.kind, "recorded")
                step("store", lambda: self._store(lease, outcome))
                self.reach(lease.kind, "stored")
        shutil.rmtree(self.folder / job_id, ignore_errors=True)

    def _take(self, job_id: str) -> Lease | None:
        with self.database.write() as session:
            return _rows.take(session, job_id, self.presence.id)

    def _attempt(self, lease: Lease) -> Document:
        """The outcome of one attempt, or of an earlier one that came to its end."""
        kind = self.kinds.get(lease.kind)
        if kind is None:
            return {"op": "failed", "problem": problem(500, f"this service has no job kind {lease.kind!r}")}
        path = self.folder / lease.job_id / "outcome.json"
        if (kept := _read(path)) is not None:
            return kept
        with self.turns.turn(kind.lane, self._must_stop), tracing.span("run"):
            inputs = self._patiently(lambda: self._begin(lease, kind))
            self.reach(lease.kind, "prepared")
            if "op" in inputs:
                return inputs
            watch = Watch(
                lambda: self._check(lease),
                lambda message: self._report(lease, message),
                lambda: self.reach(lease.kind, "started"),
            )
            outcome = self.children.run(kind, inputs["inputs"], path, watch)
        self.reach(lease.kind, "ended")
        self._patiently(lambda: self._expect(lease))  # else it may have been killed because it was taken
        return outcome

    def _begin(self, lease: Lease, kind: JobKind) -> Document:
        """Count an attempt and read its inputs; an outcome where there is nothing to run."""
        with self.database.write() as session:
            row = _rows.attempt(session, lease, kind.resumable, self.max_attempts)
        if row is None:
            return _ENDED
        try:
            with tracing.span("prepare"), self.database.of(row.tenant).read() as session:
                return {"inputs": kind.prepare(session, row)}
        except UNAVAILABLE:
            raise
        except Exception as error:
            _log.exception("job %s could not be prepared", row.id)
            return {"op": "failed", "problem": problem_of(error)}

    def _check(self, lease: Lease) -> bool:
        if self._must_stop():
            raise Interrupted("the service stops, or may be taken for dead")
        try:
            return self._expect(lease)
        except SQLAlchemyError as error:
            _log.warning("whether job %s was cancelled cannot be read: %s", lease.job_id, error)
            return False

    def _expect(self, lease: Lease) -> bool:
        """Whether the job's end was asked for; ``Interrupted`` if it is no longer ours."""
        with self.database.read() as session:
            query = select(JobRow.fence, JobRow.cancel_requested).where(JobRow.id == lease.job_id)
            fence, cancel_requested = session.execute(query).one()
        if fence != lease.fence:
            raise Interrupted(f"job {lease.job_id} was taken by another worker")
        return bool(cancel_requested)

    def _report(self, lease: Lease, message: Document) -> None:
        try:
            with self.database.write() as session:
                _rows.report(session, lease, message["progress"], message["message"], message["figures"])
        except SQLAlchemyError as error:
            _log.warning("the progress of job %s is not recorded: %s", lease.job_id, error)

    def _store(self, lease: Lease, outcome: Document) -> Document:
        """Bring the row to its final state, with what was found; the state."""
        with tracing.span("store", outcome=outcome["op"]):
            return self._stored(lease, outcome)

    def _stored(self, lease: Lease, outcome: Document) -> Document:
        op = outcome["op"]
        if op == "done":
            try:
                return self._patiently(lambda: self._finish(lease, "succeeded", found=outcome["result"]))
            except Exception as error:
                _log.exception("the result of job %s could not be stored", lease.job_id)
                failure = problem_of(error)
                return self._patiently(lambda: self._finish(lease, "failed", failure=failure))
        if op == "failed":
            return self._patiently(lambda: self._finish(lease, "failed", failure=outcome["problem"]))
        if op == "cancelled":
            return self._patiently(lambda: self._finish(lease, "cancelled"))
        return {"state": None}

    def _finish(
        self, lease: Lease, state: str, *, found: Document | None = None, failure: Document | None = None
    ) -> Document:
        left = self._left(lease)
        with self.database.of(lease.tenant).write() as session:
            row = _rows.held(session, lease)
            for artifact in left:
                session.merge(artifact)
            if row.cancel_requested:
                state, found, failure = "cancelled", None, None
            result = self.kinds[row.kind].store(session, row, found) if found is not None else None
            _rows.finish(row, state, result=result, failure=failure)
        return {"state": state}

    def _left(self, lease: Lease) -> Sequence[ArtifactRow]:
        """Rows of the files that the work has left and that are kept from now on; what fails here fails no job."""
        kind = self.kinds.get(lease.kind)
        if kind is None or kind.keep is None:
            return ()
        with self.database.read() as session:
            row = _rows.one(session, lease.job_id)
        try:
            return () if row is None else kind.keep(row)
        except Exception:
            _log.exception("what job %s has left is not kept", lease.job_id)
            return ()

    def _patiently(self, work: Callable[[], Found]) -> Found:
        """Do something with the database as soon as it is there."""
        while True:
            try:
                return work()
            except UNAVAILABLE as error:
                _log.warning("the database does not answer; trying again: %s", error)
            self._pause()

    def _pause(self) -> None:
        if self.stopping.wait(_PAUSE_S):
            raise Interrupted("the service stops")

    def _must_stop(self) -> bool:
        return self.stopping.is_set() or not self.presence.held()


def _read(path: Path) -> Document | None:
    try:
        document: Document = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        _log.warning("a kept outcome cannot be read, so the job runs again: %s", error)
        return None
    return document
