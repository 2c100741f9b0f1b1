"""The contract of job runners and job kinds.

A job is a row of the table ``jobs``. It moves through these states, and never back except along the dashed arrow:

    queued -> running -> succeeded | failed | cancelled
      ^- - - - -'  an interruption (the service stopped or died)
    queued -> cancelled

- **Durable**: ``submit`` adds the row in the caller's transaction, together with the resource that the job fills. Once
  the transaction has committed, the job will run, even if the process dies.
- **All or nothing**: a job's result is stored in the transaction that sets its state ``succeeded``. A failed or
  cancelled job stores only its ``problem``.
- **Attempts**: an interrupted job is queued again. It starts ``max_attempts`` times at most, or once if its kind is not
  resumable; then it fails as ``interrupted``. An attempt starts only when every process of the previous one is dead. If
  an attempt had finished before the interruption, its outcome is used and no further attempt is made.
- **Death of a worker process**: while it runs a resumable job, the job restarts at once; after the second death the job
  fails as ``worker-died``. A worker process that dies while idle is replaced, and no attempt is counted.
- **Fair**: of the tenants with jobs waiting in a lane, the one that got the least work is next
  (``autosbp.service.jobs._fair_queue``).
- **Fencing**: claiming a job increments its ``fence``. A worker with an older fence can report and store nothing.
- **Cancel** is a request: a queued job is cancelled at once. A running job is notified, and killed with all its
  processes if it does not stop within its grace period. After an accepted request a job never becomes ``succeeded``.
- **Progress**: ``progress`` is a fraction or null, ``message`` is for people, ``figures`` are numbers specific to the
  kind. ``revision`` grows with every change of the row, so an observer can ask for changes since a revision.
- **Errors** are problem documents (RFC 9457), as in the answers to requests.

Payloads, inputs and results are JSON. ``prepare`` and ``store`` get a session of the job's tenant. Every method may be
called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # worker processes import this module without the database
    from sqlalchemy.orm import Session

    from autosbp.service.models import ArtifactRow, JobRow

Document = dict[str, Any]

FINAL_STATES = ("succeeded", "failed", "cancelled")
LANES = ("plan", "measure")
"""Queues: ``measure`` for jobs that need the machine for themselves, ``plan`` for searches and all others."""


class TaskContext(Protocol):
    """Services for a task in the worker process."""

    def progress(self, fraction: float | None, message: str, **figures: float) -> bool:
        """Report progress; False means that the task should stop."""

    def cancelled(self) -> bool:
        """Whether the task should stop, because of a cancellation or because the service is gone."""

    def orphaned(self) -> bool:
        """Whether the service is gone."""


Task = Callable[[Document, TaskContext], Document]


class CancelledError(Exception):
    """Raised by a task that stopped because it was cancelled; a returned result always counts as complete."""


class Interrupted(BaseException):  # noqa: N818 - no error: nothing that handles errors may take it for one
    """The work on this job ends here without an outcome; it continues later, here or elsewhere."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of a job's process; None is unlimited. Each child process may use ``memory_bytes`` as well."""

    memory_bytes: int | None = None
    cpu_s: float | None = None
    wall_s: float | None = None


@dataclass(frozen=True, slots=True)
class JobKind:
    """One kind of job.

    Args:
        target: ``module:function`` of the ``Task``, which runs in a worker process without the database.
        prepare: reads the task's inputs from the database; the row's ``attempts`` includes this attempt.
        store: writes the task's result in the transaction that ends the job; returns the job's ``result``.
        resumable: whether an interrupted job may run again.
        lane: its queue, one of ``LANES``.
        limits: resource limits of its process.
        keep: saves files of the work, however it ended, and returns their rows, which are stored with the job's end.
    """

    target: str
    prepare: Callable[[Session, JobRow], Document]
    store: Callable[[Session, JobRow, Document], Document]
    resumable: bool
    lane: str = "plan"
    limits: Limits = Limits()
    keep: Callable[[Session, JobRow], Sequence[ArtifactRow]] | None = None


Kinds = Mapping[str, JobKind]


class JobRunner(Protocol):
    """Runs the jobs of one database; the module's docstring has the guarantees."""

    def start(self) -> None:
        """Start working, including on interrupted jobs."""

    def stop(self) -> None:
        """Interrupt running jobs and end all their processes."""

    def submit(
        self,
        session: Session,
        kind: str,
        payload: Document,
        resource: str | None = None,
        job_id: str | None = None,
        expected_s: float = ...,
    ) -> JobRow:
        """Queue a job of the session's tenant in the caller's transaction.

        Args:
            session: a writing session.
            kind: name of the job kind.
            payload: parameters of the job, stored in its row.
            resource: path of the resource that the job fills, such as ``/v1/searches/ID``.
            job_id: the job's id; None generates one.
            expected_s: expected run time in seconds.

        Raises:
            ProblemError: 429 if too many jobs wait, or their expected run time is too long.
        """

    def get(self, job_id: str) -> JobRow | None:
        """Return the job's current row, detached."""

    def cancel(self, job_id: str, check: Callable[[JobRow], None] | None = None) -> JobRow | None:
        """Request the end of a job and return its row; None if it does not exist.

        ``check`` gets the row first, in the same transaction, and may refuse by raising. Raises ``ProblemError`` 409 if
        the job has succeeded or failed already.
        """

    def newer(self, job_id: str, revision: int) -> JobRow | None:
        """Return the job's row if it has changed since ``revision``; observers poll this."""

    def unhealthy_reason(self) -> str | None:
        """Why this process does not work on queued jobs; None if it does, or if only others should."""
